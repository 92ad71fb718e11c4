"""`to_spark`: a DataFrame of a bounded stream.

STREAMING runs the job to its end, with a file sink into a staging folder, and gives a DataFrame that reads those files:
they stay until the program ends. BATCH runs nothing: the DataFrame has the job in its lineage, and Spark runs it when,
and as often as, somebody asks the DataFrame something.
"""

from __future__ import annotations

import dataclasses
import io
import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

from pyspark.sql.functions import lit
from pyspark.sql.types import NullType, StructField, StructType

from tidegate.common import options
from tidegate.common.configuration import Configuration
from tidegate.common.errors import ConfigurationError, of_type
from tidegate.common.serialization import BulkWriter, BulkWriterFactory
from tidegate.connectors.files.bucket_assigner import BucketAssigner
from tidegate.connectors.files.output_file_config import OutputFileConfig
from tidegate.connectors.files.rolling_policy import RollingPolicy
from tidegate.connectors.files.sink import FileSink
from tidegate.connectors.files.writer import FileWriterSettings
from tidegate.contracts.collect_sink import CollectSink
from tidegate.contracts.connectors import Boundedness
from tidegate.datastream.execution_mode import RuntimeExecutionMode
from tidegate.formats.arrow_rows import ColumnsOfRecords
from tidegate.formats.columnar import ColumnarWriter
from tidegate.graph.chaining import build_job_graph
from tidegate.graph.operator_specs import SinkSpec, SourceSpec
from tidegate.graph.picklability import check_picklable
from tidegate.graph.transformations import OperatorTransformation, SinkTransformation, Transformation
from tidegate.spark.dataframes.schemas import arrow_schema_of, wanted_schema
from tidegate.spark.dataframes.staging import delete_at_exit, delete_folder, new_folder, spark_path
from tidegate.spark.session import obtain_session
from tidegate.storage.files import open_files

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from tidegate.datastream.stream import DataStream

WHERE = "to_spark"
_CHECK_INTERVAL_MS = 60_000  # of the rolling policy


def dataframe_of(stream: DataStream, schema: Any, job_name: str | None) -> DataFrame:
    environment = stream.get_execution_environment()
    configuration = Configuration(environment._configuration)
    upstream = _upstream(stream._transformation)
    _check_bounded(upstream)
    # A DDL string is read by Spark itself, so there has to be a session before anything else is checked.
    session = obtain_session(configuration, environment._spark, environment.get_parallelism())
    struct, single = wanted_schema(stream._transformation.output_type, schema, WHERE)
    if options.read(configuration, options.RUNTIME_MODE) == RuntimeExecutionMode.STREAMING.name:
        return _run(stream, struct, single, session, configuration, job_name)
    return _lazy(stream, struct, single, session, configuration, upstream)


def _upstream(transformation: Transformation) -> list[Transformation]:
    found: dict[int, Transformation] = {}
    stack = [transformation]
    while stack:
        current = stack.pop()
        if current.id not in found:
            found[current.id] = current
            stack.extend(current.inputs)
    return list(found.values())


def _check_bounded(upstream: list[Transformation]) -> None:
    for transformation in upstream:
        spec = transformation.spec if isinstance(transformation, OperatorTransformation) else None
        if isinstance(spec, SourceSpec) and spec.source.boundedness is not Boundedness.BOUNDED:
            raise ConfigurationError(
                f"{WHERE}: the source '{transformation.name}' has no end, and a DataFrame is made of a stream that has "
                "one. Write the stream to a table that Spark reads while the job runs (FileSink with Parquet, "
                "DeltaSink), or bound the source."
            )


# ---------------------------------------------------------------- STREAMING


def _run(
    stream: DataStream,
    struct: StructType,
    single: bool,
    session: SparkSession,
    configuration: Configuration,
    job_name: str | None,
) -> DataFrame:
    environment = stream.get_execution_environment()
    folder = new_folder(configuration, session, "result", WHERE)
    settings = FileWriterSettings(
        ArrowParquetFactory(arrow_schema_of(struct, WHERE), single),
        BucketAssigner.base_path_bucket_assigner(),
        RollingPolicy.on_checkpoint_rolling_policy(),
        OutputFileConfig(),
        _CHECK_INTERVAL_MS,
    )
    sink = stream.sink_to(FileSink(folder, settings)).name("DataFrame")
    transformation = of_type(SinkTransformation, sink._transformation)
    try:
        client = environment._submit(job_name)
    except BaseException:
        environment._remove_operator(transformation)
        delete_folder(folder)
        raise
    try:
        client.get_job_execution_result().result()
    except BaseException:
        client.cancel()  # of use only when the program was interrupted
        delete_folder(folder)
        raise
    names = [name for name in open_files(folder).names("") if not name.startswith(".")]
    if not names:
        delete_folder(folder)
        return session.createDataFrame([], struct)
    delete_at_exit(folder)
    numbered = [StructField(f"c{i}", f.dataType, f.nullable) for i, f in enumerate(struct.fields)]
    # PySpark 3.5 cannot read columns that hold nothing but nulls from Parquet.
    read = session.read.schema(StructType([f for f in numbered if not isinstance(f.dataType, NullType)]))
    rows = read.parquet(*[spark_path(folder, name) for name in names])
    columns = [lit(None).alias(f.name) if isinstance(f.dataType, NullType) else rows[f.name] for f in numbered]
    return rows.select(*columns).toDF(*struct.names)


class ArrowParquetFactory(BulkWriterFactory):
    """Parquet files with exactly the columns of an Arrow schema, under numbers (`c0`): Spark 4.0 takes a dot or a
    backtick in the name of a file's column for syntax."""

    def __init__(self, schema: pa.Schema, single: bool = False) -> None:
        self._schema = schema
        self._single = single

    def create(self, stream: BinaryIO) -> BulkWriter:
        import pyarrow as pa

        from tidegate.formats.parquet import ParquetOutput

        columns = ColumnsOfRecords(self._schema, self._single)
        numbered = pa.schema([field.with_name(f"c{i}") for i, field in enumerate(self._schema)])

        def batch(records: list[Any]) -> pa.RecordBatch:
            return pa.RecordBatch.from_arrays(columns.batch(records).columns, schema=numbered)

        return ColumnarWriter(stream, numbered, batch, ParquetOutput)


# ---------------------------------------------------------------- BATCH


def _lazy(
    stream: DataStream,
    struct: StructType,
    single: bool,
    session: SparkSession,
    configuration: Configuration,
    upstream: list[Transformation],
) -> DataFrame:
    from tidegate.spark.batch.compilation import collected_rdd

    environment = stream.get_execution_environment()
    collect = SinkTransformation("DataFrame", SinkSpec(CollectSink(stream.get_name())), (stream._transformation,))
    graph = build_job_graph([collect], environment._graph_settings(), WHERE, environment._job_id()).job_graph
    check_picklable(graph)
    blocks = collected_rdd(dataclasses.replace(environment._submission(graph), session=session))
    for transformation in upstream:  # they are the DataFrame's now, and no part of the next job unless it uses them
        if isinstance(transformation, OperatorTransformation):
            environment._remove_operator(transformation)
    schema = arrow_schema_of(struct, WHERE)
    carrier = session.createDataFrame(blocks.map(_carried), "block binary")
    return carrier.mapInArrow(BlocksToArrow(schema, single), struct)


def _carried(block: bytes) -> tuple[bytearray]:
    return (bytearray(block),)


class BlocksToArrow:
    """In a Spark task: pickled lists of records become columns."""

    def __init__(self, schema: pa.Schema, single: bool) -> None:
        self._schema = schema
        self._single = single

    def __call__(self, carriers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        columns = ColumnsOfRecords(self._schema, self._single)
        for carrier in carriers:
            for block in carrier.column(0):
                records = pickle.load(io.BytesIO(block.as_buffer()))
                if records:
                    yield columns.batch(records)
