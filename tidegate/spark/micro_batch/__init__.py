"""MICRO_BATCH execution: the job as one query of Spark Structured Streaming. `docs/concepts/runtime-modes.md` first.

Spark moves the rows, keeps the state, counts the batches and recovers. `query` builds the stateful operators, one per
vertex, `stage` runs in their workers, `task` is one subtask in one batch (it knows nothing of Spark), `job` is the
driver's side: commits, restarts, savepoints. `ticks` is the query's source, `location` its checkpoint location.

Designs that were not taken:

- *A stateful operator with a group per key.* Every access to state is a round trip to the JVM: some thousand a second.
  Here a group is a subtask, with its keys in buckets, and a batch reads and writes each bucket that it touches once.
- *Several queries with a log between them.* Each would commit batches of its own, and a failure between two of them
  would have to be told from one within. Spark allows stateful operators one after the other, so there is one batch.
- *The positions of the sources as Spark's offsets.* Spark wants to know the end of a batch before it is read, and most
  of our sources know it only afterwards. Positions are state of the source's subtask, which Spark keeps like any other:
  batch n + 1 begins where the state of batch n says, and a batch that is run again begins where the one before ended.
- *Sinks that commit in `foreachBatch`.* Spark may still run the batch again then, and would have to read the same
  records and compute the same results. Here sinks commit when Spark has.
"""
