"""The environment: where a program begins its streams, makes its settings and runs the job."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from tidegate.common import options
from tidegate.common.configuration import CONFIGURATION, Configuration
from tidegate.common.errors import ConfigurationError
from tidegate.common.execution_config import ExecutionConfig
from tidegate.common.job_id import JobID
from tidegate.common.option_validation import validate_keys, validate_values
from tidegate.common.restart_strategy import RestartStrategyConfiguration, restart_strategy_of
from tidegate.common.run_defaults import run_defaults
from tidegate.common.time import TimeLike
from tidegate.common.watermark_strategy import WatermarkStrategy
from tidegate.common.worker_files import WorkerFiles
from tidegate.connectors.collection import CollectionSource
from tidegate.connectors.source_function import SourceFunctionSource
from tidegate.contracts.connectors import Source
from tidegate.contracts.functions import CheckpointedFunction, SourceFunction
from tidegate.datastream import interception
from tidegate.datastream.arguments import (
    checked_function,
    checked_int,
    checked_session,
    checked_text,
    checked_type_info,
    records_of_table,
)
from tidegate.datastream.checkpoint_config import CheckpointConfig
from tidegate.datastream.checkpoint_storage import checked_uri
from tidegate.datastream.checkpointing_mode import CheckpointingMode
from tidegate.datastream.execution_mode import RuntimeExecutionMode
from tidegate.datastream.progress import shown_progress
from tidegate.datastream.restart_settings import write_restart_strategy
from tidegate.datastream.runtimes import checked_mode, runtime_of
from tidegate.datastream.slot_sharing_group import SlotSharingGroup
from tidegate.datastream.spark_bridge import spark_module
from tidegate.datastream.state_backend import StateBackend
from tidegate.datastream.stream import DataStream
from tidegate.datastream.worker_settings import WorkerSettings
from tidegate.graph.chaining import build_job_graph
from tidegate.graph.operator_specs import SourceSpec
from tidegate.graph.plan_json import execution_plan
from tidegate.graph.stream_graph import GraphSettings, build_stream_graph
from tidegate.graph.transformations import OperatorTransformation, SettingsAtCreation, SourceTransformation
from tidegate.jobmanager.running_jobs import cancelled_by_interrupt
from tidegate.jobmanager.runtime import Submission
from tidegate.storage.location import StorageLocation

if TYPE_CHECKING:
    from tidegate.common.job_client import JobClient
    from tidegate.common.job_execution_result import JobExecutionResult
    from tidegate.datastream.cached_stream import CachedDataStream
    from tidegate.graph.job_graph import JobGraph
    from tidegate.jobmanager.published_client import PublishedJobClient

DEFAULT_JOB_NAME = "Tidegate Streaming Job"


class StreamExecutionEnvironment(WorkerSettings):
    """One program's jobs. `execute` runs all that was built since the last one.

    All settings live in one `Configuration`; the methods here, `get_config` and `get_checkpoint_config` are views of
    it.
    """

    _default_local_parallelism: ClassVar[int | None] = None

    def __init__(self, configuration: Configuration | None = None, spark: Any = None) -> None:
        super().__init__()
        self._configuration = run_defaults()
        if self._default_local_parallelism is not None and not self._configuration.contains(options.PARALLELISM):
            self._configuration.set(options.PARALLELISM, self._default_local_parallelism)
        if configuration is not None:
            self._configuration.add_all(Configuration(configuration).come_from(CONFIGURATION))
        self._spark = checked_session(spark)  # SparkSession, None: the active one, or a new one
        if spark is not None:
            spark_module("state_tables.discovery").make_known(spark)
        self._operators: list[OperatorTransformation] = []  # since the last execute, in the order of their making
        self._python_files: list[str] = []
        self._slot_sharing_groups: dict[str, SlotSharingGroup] = {}
        self._execution_config = ExecutionConfig(self._configuration)
        self._checkpoint_config = CheckpointConfig(self._configuration)
        self._state_backend: StateBackend | None = None
        self._closed = False
        self._caches: list[CachedDataStream] = []
        self._cache_folder: StorageLocation | None = None  # made by the first job that stores a cached stream
        self._delete_caches: Callable[[], object] = lambda: None
        self._check_configuration()

    @staticmethod
    def get_execution_environment(
        configuration: Configuration | None = None, spark: Any = None
    ) -> StreamExecutionEnvironment:
        """A new environment with a copy of the configuration.

        `spark`: the SparkSession to run on. Without one the active session is used when there is one, and otherwise one
        is created when a job is executed, from the keys that start with `spark.`."""
        if configuration is not None and not isinstance(configuration, Configuration):
            raise TypeError(
                f"get_execution_environment: configuration has to be a Configuration, got "
                f"{type(configuration).__name__}; make one with Configuration.from_dict({{...}})"
            )
        return StreamExecutionEnvironment(configuration, spark)

    def configure(self, configuration: Configuration) -> None:
        """Take over all keys of `configuration`."""
        if not isinstance(configuration, Configuration):
            raise TypeError(f"configure: takes a Configuration, got {type(configuration).__name__}")
        validate_keys(configuration)
        validate_values(configuration)
        self._configuration.add_all(configuration)
        self._check_configuration()

    def get_configuration(self) -> Configuration:
        """A copy of all settings as they are now."""
        return Configuration(self._configuration)

    def get_config(self) -> ExecutionConfig:
        return self._execution_config

    # ------------------------------------------------------------ parallelism, buffers, chains

    def set_parallelism(self, parallelism: int) -> StreamExecutionEnvironment:
        """Sets the parallelism of the operators that are made from now on and do not set their own."""
        checked_int("set_parallelism", parallelism, 1, "the parallelism")
        return self._set(options.PARALLELISM, parallelism)

    def get_parallelism(self) -> int:
        return self._execution_config.get_parallelism()

    def set_max_parallelism(self, max_parallelism: int) -> StreamExecutionEnvironment:
        """The number of key groups: the most subtasks that the job can ever be rescaled to."""
        checked_int("set_max_parallelism", max_parallelism, 1, "the max parallelism")
        return self._set(options.MAX_PARALLELISM, max_parallelism)

    def get_max_parallelism(self) -> int:
        """-1 when it was not set: then it follows from each operator's parallelism."""
        return self._execution_config.get_max_parallelism()

    @staticmethod
    def set_default_local_parallelism(parallelism: int) -> None:
        """The parallelism of environments that are made from now on, where neither the configuration nor the program
        says another."""
        StreamExecutionEnvironment._default_local_parallelism = checked_int(
            "set_default_local_parallelism", parallelism, 1, "the parallelism"
        )

    @staticmethod
    def get_default_local_parallelism() -> int:
        chosen = StreamExecutionEnvironment._default_local_parallelism
        return int(options.PARALLELISM.default) if chosen is None else chosen

    def set_buffer_timeout(self, timeout_millis: int) -> StreamExecutionEnvironment:
        """How long a batch that is not full may wait before it is sent. -1: until it is full; 0: not at all."""
        checked_int("set_buffer_timeout", timeout_millis, -1, "the timeout")
        return self._set(options.BUFFER_TIMEOUT, timeout_millis)

    def get_buffer_timeout(self) -> int:
        if not options.read(self._configuration, options.BUFFER_TIMEOUT_ENABLED):
            return -1
        return int(options.read(self._configuration, options.BUFFER_TIMEOUT))

    def disable_operator_chaining(self) -> StreamExecutionEnvironment:
        """Every operator becomes a task of its own."""
        return self._set(options.OPERATOR_CHAINING, False)

    def is_chaining_enabled(self) -> bool:
        return bool(options.read(self._configuration, options.OPERATOR_CHAINING))

    def is_chaining_of_operators_with_different_max_parallelism_enabled(self) -> bool:
        """Always False: operators of one task have the same key groups."""
        return False

    def register_slot_sharing_group(self, slot_sharing_group: SlotSharingGroup) -> StreamExecutionEnvironment:
        """Make a group's resources known; a group needs no registration to be used by name."""
        if not isinstance(slot_sharing_group, SlotSharingGroup):
            raise TypeError(
                f"register_slot_sharing_group: takes a SlotSharingGroup, got {type(slot_sharing_group).__name__}"
            )
        self._slot_sharing_groups[slot_sharing_group.get_name()] = slot_sharing_group
        return self

    def set_runtime_mode(self, execution_mode: RuntimeExecutionMode) -> StreamExecutionEnvironment:
        if not isinstance(execution_mode, RuntimeExecutionMode):
            raise TypeError(f"set_runtime_mode: takes a RuntimeExecutionMode, got {execution_mode!r}")
        checked_mode(execution_mode.name)
        return self._set(options.RUNTIME_MODE, execution_mode)

    # ------------------------------------------------------------ fault tolerance

    def get_checkpoint_config(self) -> CheckpointConfig:
        return self._checkpoint_config

    def enable_checkpointing(
        self, interval: TimeLike, mode: CheckpointingMode | None = None
    ) -> StreamExecutionEnvironment:
        """A checkpoint every `interval` milliseconds. Without a mode the configured one stays."""
        self._checkpoint_config.set_checkpoint_interval(interval)
        if mode is not None:
            self._checkpoint_config.set_checkpointing_mode(mode)
        return self

    def get_checkpoint_interval(self) -> int:
        """The interval in milliseconds; -1 when there are no checkpoints."""
        return self._checkpoint_config.get_checkpoint_interval()

    def get_checkpointing_mode(self) -> CheckpointingMode:
        return self._checkpoint_config.get_checkpointing_mode()

    get_checkpointing_consistency_mode = get_checkpointing_mode

    def is_unaligned_checkpoints_enabled(self) -> bool:
        return self._checkpoint_config.is_unaligned_checkpoints_enabled()

    def is_force_unaligned_checkpoints(self) -> bool:
        return self._checkpoint_config.is_force_unaligned_checkpoints()

    def set_state_backend(self, state_backend: StateBackend) -> StreamExecutionEnvironment:
        if not isinstance(state_backend, StateBackend):
            raise TypeError(
                f"set_state_backend: takes an instance of a state backend such as HashMapStateBackend(), "
                f"got {state_backend!r}"
            )
        state_backend.write_to(self._configuration)
        self._state_backend = state_backend
        return self

    def get_state_backend(self) -> StateBackend | None:
        """The backend that was set here, None when none was."""
        return self._state_backend

    def enable_changelog_state_backend(self, enabled: bool) -> StreamExecutionEnvironment:
        """Accepted without effect: checkpoints are incremental in both backends."""
        return self._set(options.STATE_CHANGELOG, enabled)

    def is_changelog_state_backend_enabled(self) -> bool | None:
        """The choice that the program made; None when it made none."""
        if not self._configuration.contains(options.STATE_CHANGELOG):
            return None
        return bool(options.read(self._configuration, options.STATE_CHANGELOG))

    def set_restart_strategy(
        self, restart_strategy_configuration: RestartStrategyConfiguration
    ) -> StreamExecutionEnvironment:
        """Sets what is done after a failure; `RestartStrategies` makes the argument."""
        write_restart_strategy(self._configuration, restart_strategy_configuration)
        return self

    def get_restart_strategy(self) -> RestartStrategyConfiguration:
        """The strategy that a job executed now would have."""
        return restart_strategy_of(self._configuration, self._checkpoint_config.is_checkpointing_enabled())

    def set_default_savepoint_directory(self, directory: str) -> StreamExecutionEnvironment:
        """Sets the folder for savepoints that are triggered without one."""
        return self._set(options.SAVEPOINT_DIR, checked_uri(directory, "set_default_savepoint_directory"))

    def get_default_savepoint_directory(self) -> str | None:
        directory: str | None = options.read(self._configuration, options.SAVEPOINT_DIR)
        return directory

    # ------------------------------------------------------------ code for the workers

    def add_python_file(self, file_path: str) -> None:
        """A Python file, a package folder or a zip that the workers need. What lies beside the program's script gets to
        them without this."""
        path = os.fspath(file_path)
        if not os.path.exists(path):
            raise ConfigurationError(f"add_python_file: there is no file or folder '{path}'")
        self._python_files.append(os.path.abspath(path))

    def add_jars(self, *jars_path: str) -> None:
        """Accepted for programs that come from PyFlink: connectors here are Python, jars have no effect."""
        warnings.warn("add_jars has no effect: connectors of Tidegate are Python", UserWarning, stacklevel=2)

    def add_classpaths(self, *classpaths: str) -> None:
        """Accepted for programs that come from PyFlink, without effect."""
        warnings.warn("add_classpaths has no effect: connectors of Tidegate are Python", UserWarning, stacklevel=2)

    # ------------------------------------------------------------ sources

    def from_collection(self, collection: Iterable[Any], type_info: Any = None) -> DataStream:
        """The elements of a collection, in order, by one subtask."""
        if (instead := records_of_table(collection)) is not None:
            raise TypeError(f"from_collection: takes records, got a {type(collection).__name__}; use {instead}")
        if isinstance(collection, (str, bytes)) or not isinstance(collection, Iterable):
            raise TypeError(
                f"from_collection: takes a list or another iterable of records, got {type(collection).__name__}"
            )
        declared = checked_type_info(type_info, "from_collection(type_info)")
        source = CollectionSource(collection, declared)
        transformation = SourceTransformation("Collection", SourceSpec(source), output_type=declared)
        transformation.converts_output = declared is not None
        transformation.parallelism = 1
        transformation.parallelism_fixed = True
        self._add_operator(transformation)
        return DataStream(self, transformation)

    def from_source(
        self, source: Source[Any], watermark_strategy: WatermarkStrategy, source_name: str, type_info: Any = None
    ) -> DataStream:
        if not isinstance(source, Source):
            raise TypeError(
                f"from_source: source has to be an instance of Source (tidegate.contracts.connectors), got {source!r}"
            )
        if not isinstance(watermark_strategy, WatermarkStrategy):
            raise TypeError(
                "from_source: watermark_strategy has to be a WatermarkStrategy, for example "
                f"WatermarkStrategy.no_watermarks(), got {watermark_strategy!r}"
            )
        checked_text("from_source", source_name, "the name of the source")
        declared = checked_type_info(type_info, "from_source(type_info)")
        known = declared if declared is not None else source.get_produced_type()
        transformation = SourceTransformation(source_name, SourceSpec(source, watermark_strategy), output_type=known)
        transformation.converts_output = declared is not None
        self._add_operator(transformation)
        return DataStream(self, transformation)

    def add_source(
        self, source_func: SourceFunction | Source[Any], source_name: str = "Custom Source", type_info: Any = None
    ) -> DataStream:
        """The records that a SourceFunction pushes, in one subtask. It cannot be replayed: after a recovery it is run
        anew, so this is at most once. Use `from_source` with a Source for more."""
        if isinstance(source_func, Source):
            return self.from_source(source_func, WatermarkStrategy.no_watermarks(), source_name, type_info)
        function = checked_function("add_source", source_func, SourceFunction, ("run", "cancel"), plain=False)
        if isinstance(function, CheckpointedFunction):
            raise TypeError(
                f"add_source: {type(function).__qualname__} is a CheckpointedFunction, which a SourceFunction cannot "
                "be here, since it has a thread of its own; implement a Source (tidegate.contracts.connectors)"
            )
        checked_text("add_source", source_name, "the name of the source")
        declared = checked_type_info(type_info, "add_source(type_info)")
        spec = SourceSpec(SourceFunctionSource(function, declared))
        transformation = SourceTransformation(source_name, spec, output_type=declared)
        transformation.converts_output = declared is not None
        transformation.parallelism = 1
        transformation.parallelism_fixed = True
        self._add_operator(transformation)
        return DataStream(self, transformation)

    def create_input(self, input_format: Source[Any], type_info: Any = None) -> DataStream:
        """The records of a Source, which is what an input format is here."""
        if not isinstance(input_format, Source):
            raise TypeError(
                f"create_input: takes a Source (tidegate.contracts.connectors), got {input_format!r}; input "
                "formats of Flink are Java"
            )
        return self.from_source(input_format, WatermarkStrategy.no_watermarks(), type(input_format).__name__, type_info)

    def from_spark(
        self, df: Any, watermark_strategy: WatermarkStrategy | None = None, source_name: str = "DataFrame"
    ) -> DataStream:
        """The rows of a Spark DataFrame, as Rows with its column names.

        In STREAMING mode the DataFrame's query is run once, when the job is submitted, and its result landed in a
        staging folder, so that a restart reads the same rows. In BATCH mode it becomes part of the job's own stages.
        See docs/spark.md."""
        source = spark_module("dataframes.entry").dataframe_source(self, df)
        return self.from_source(source, watermark_strategy or WatermarkStrategy.no_watermarks(), source_name)

    def from_spark_stream(
        self,
        sdf: Any,
        watermark_strategy: WatermarkStrategy | None = None,
        source_name: str = "Spark stream",
        *,
        staging: str | None = None,
        output_mode: str = "append",
        trigger: str | None = None,
    ) -> DataStream:
        """The rows of a Structured Streaming DataFrame, exactly once, for STREAMING and MICRO_BATCH mode.

        A query of Spark lands its micro-batches in a staging folder, from which the job reads. `staging`: that folder;
        a job that is started from a snapshot by another program has to name the one of the run before. `output_mode`
        and `trigger` (a processing time such as "1 second") are those of the query. See docs/spark.md."""
        entry = spark_module("dataframes.entry")
        source = entry.streaming_source(self, sdf, source_name, staging, output_mode, trigger)
        return self.from_source(source, watermark_strategy or WatermarkStrategy.no_watermarks(), source_name)

    # ------------------------------------------------------------ running

    def execute(self, job_name: str | None = None) -> JobExecutionResult:
        """Run the job to its end. Raises JobExecutionError with the operator and your own traceback when it fails.

        Ctrl-C cancels this job and no other one, and comes back as KeyboardInterrupt when the job has ended."""
        with cancelled_by_interrupt():  # its slots are free for what comes next
            client = self._submit(job_name)
            with shown_progress(client.view, self._configuration):
                return client.get_job_execution_result().result()

    def execute_async(self, job_name: str | None = None) -> JobClient:
        """Start the job and return at once."""
        return self._submit(job_name)

    def get_execution_plan(self) -> str:
        """The operators so far and how records get from one to another, as JSON. Nothing is run."""
        return execution_plan(build_stream_graph(self._operators, self._graph_settings(), require_sink=False))

    def close(self) -> None:
        """Forget what was built. A session that was given or was there before is left as it is. May be called twice."""
        self._operators.clear()
        self._caches.clear()
        self._delete_caches()
        self._closed = True

    def __enter__(self) -> StreamExecutionEnvironment:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _submit(self, job_name: str | None) -> PublishedJobClient:
        """Over to the runtime. What was built is forgotten once the job is accepted."""
        if self._closed:
            raise ConfigurationError("this execution environment was closed; get a new one to run a job")
        self._check_configuration()
        checked_mode(options.read(self._configuration, options.RUNTIME_MODE))
        name = job_name or options.read(self._configuration, options.PIPELINE_NAME) or DEFAULT_JOB_NAME
        name = checked_text("execute", name, "the job name")
        storing = [(cache, cache._new_run()) for cache in self._caches if cache._needs_run(self._operators)]
        operators = [*self._operators, *(sink for _, sink in storing)]
        built = build_job_graph(operators, self._graph_settings(), name, self._job_id())
        submission = interception.intercepted(self._submission(built.job_graph))
        with cancelled_by_interrupt():  # nobody has got hold of the job yet
            client = runtime_of(submission.configuration, submission.graph).submit(submission)
        interception.started(client)
        for cache, sink in storing:
            cache._run_started(sink, client)
        self._operators.clear()
        return client

    # ------------------------------------------------------------ helpers

    def _submission(self, graph: JobGraph) -> Submission:
        """All that a runtime needs, copied: what is set here later does not reach the job."""
        modules = (*self._python_files, *options.read(self._configuration, options.PYTHON_FILES))
        chosen = self._worker_files
        files = WorkerFiles(
            dict(chosen.cached), dict(chosen.archives), chosen.python_executable, modules, chosen.requirements
        )
        return Submission(graph, Configuration(self._configuration), self._spark, files)

    def _job_id(self) -> str | None:
        """The fixed one, None when each submission gets its own."""
        fixed = options.read(self._configuration, options.JOB_ID)
        if fixed is None:
            return None
        try:
            return JobID.from_hex(fixed).hex
        except ConfigurationError as error:
            raise ConfigurationError(f"{options.JOB_ID.key}: {error}") from error

    def _add_operator(self, transformation: OperatorTransformation) -> None:
        def set_so_far(option: Any, value: Any) -> Any:
            return value if self._configuration.contains(option) else None

        transformation.created_under = SettingsAtCreation(
            parallelism=self.get_parallelism(),
            max_parallelism=set_so_far(options.MAX_PARALLELISM, self.get_max_parallelism()),
            buffer_timeout_ms=set_so_far(options.BUFFER_TIMEOUT, self.get_buffer_timeout()),
            chaining=set_so_far(options.OPERATOR_CHAINING, self.is_chaining_enabled()),
        )
        self._operators.append(transformation)

    def _remove_operator(self, transformation: OperatorTransformation) -> None:
        if transformation in self._operators:
            self._operators.remove(transformation)

    def _graph_settings(self) -> GraphSettings:
        return GraphSettings(
            parallelism=self.get_parallelism(),
            max_parallelism=options.read(self._configuration, options.MAX_PARALLELISM),
            buffer_timeout_ms=self.get_buffer_timeout(),
            chaining_enabled=self.is_chaining_enabled(),
            auto_generate_uids=self._execution_config.has_auto_generated_uids_enabled(),
        )

    def _check_configuration(self) -> None:
        validate_keys(self._configuration)
        validate_values(self._configuration)

    def _set(self, option: Any, value: Any) -> StreamExecutionEnvironment:
        self._configuration.set(option, value)
        return self
