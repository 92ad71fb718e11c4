"""BATCH execution: a bounded job as ordinary Spark stages. Read `docs/concepts/batch.md` first.

Every vertex of the job graph is one `mapPartitionsWithIndex` over its input; between vertices there is one shuffle per
consumer, of opaque blocks of many records. `compilation` builds that, `task` runs one subtask in a worker (it knows
nothing of Spark), `job` runs the whole on the driver: retries, the report, commits, the savepoint at the end.

Two seams for bridges such as DataFrames:

A source that has its records in Spark already. Beside `create_splits` and `create_reader`, which STREAMING uses, its
class has two methods, and BATCH then asks it for neither splits nor readers::

    def batch_rdd(self, session: SparkSession) -> RDD[bytes]:
        '''On the driver, lazily: blocks of records as raw bytes (an RDD whose serializer is NoOpSerializer). Subtask i
        reads partition i; with more partitions than subtasks they are coalesced.'''

    def read_block(self, block: bytes) -> RecordBatch | list[Any]:
        '''In a worker, on the unpickled source: the records of one block, in order.'''

A stream whose records stay in Spark. `compilation.collected_rdd(submission)` takes a submission whose job graph has
exactly one collect sink (`SinkSpec(CollectSink(...))`) and returns, without running anything, an RDD of raw bytes: each
element is the pickled list of some records, each partition one subtask of the sink. Running the RDD is Spark's business
from there on.
"""
