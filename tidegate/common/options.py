"""Every configuration key that Tidegate knows, each with its type, its default and what it means.

A module reads an option with `options.read(config, options.PARALLELISM)` and gets a typed value. `option_validation`
checks a whole configuration against this table, and `options_page` writes `docs/configuration.md` from it.
"""

from __future__ import annotations

from typing import Any

from tidegate.common.config_options import ConfigOption, OptionType
from tidegate.common.configuration import Configuration

_STRING, _INTEGER, _FLOAT = OptionType.STRING, OptionType.INTEGER, OptionType.FLOAT
_BOOLEAN, _DURATION, _MEMORY = OptionType.BOOLEAN, OptionType.DURATION, OptionType.MEMORY
_ENUM, _LIST, _MAP = OptionType.ENUM, OptionType.LIST, OptionType.MAP

# ---------------------------------------------------------------- the job

PARALLELISM = ConfigOption(
    "parallelism.default", _INTEGER, 1, "How many parallel subtasks an operator has when it does not say.", minimum=1
)
MAX_PARALLELISM = ConfigOption(
    "pipeline.max-parallelism",
    _INTEGER,
    None,
    "Number of key groups: the highest parallelism a job can ever be resumed at. Unset: chosen from the parallelism.",
    minimum=1,
    maximum=32768,
)
PIPELINE_NAME = ConfigOption("pipeline.name", _STRING, None, "Name of the job, as the page and the logs show it.")
JOB_ID = ConfigOption(
    "pipeline.job-id",
    _STRING,
    None,
    "Fixed id of the job, 32 hex digits: its checkpoints then lie in the same folder at every submission, and only one "
    "job with this id can run there at a time. Unset: a new random one per submission.",
)
OPERATOR_CHAINING = ConfigOption(
    "pipeline.operator-chaining.enabled",
    _BOOLEAN,
    True,
    "Run operators that are connected one to one in the same task, without a channel between them.",
    ("pipeline.operator-chaining",),
)
AUTO_WATERMARK_INTERVAL = ConfigOption(
    "pipeline.auto-watermark-interval",
    _DURATION,
    200,
    "How often periodic watermarks are made, and idleness is looked at. 0: never.",
    minimum=0,
)
OBJECT_REUSE = ConfigOption(
    "pipeline.object-reuse",
    _BOOLEAN,
    False,
    "Give the same objects to all readers of a stream. false: a stream that several operators read gives each of them "
    "records of its own, when they can be changed at all, so that no reader sees what another does to them.",
)
CLOSURE_CLEANER = ConfigOption(
    "pipeline.closure-cleaner-level",
    _ENUM,
    "RECURSIVE",
    "Accepted without effect: functions are pickled with what they refer to, and nothing else.",
    choices=("NONE", "TOP_LEVEL", "RECURSIVE"),
)
AUTO_GENERATE_UIDS = ConfigOption(
    "pipeline.auto-generate-uids",
    _BOOLEAN,
    True,
    "Give operators without a uid an id from their place in the graph. false: an operator without a uid is an error.",
)
GLOBAL_JOB_PARAMETERS = ConfigOption(
    "pipeline.global-job-parameters", _MAP, {}, "Pairs that functions can read through their runtime context."
)
PIPELINE_JARS = ConfigOption("pipeline.jars", _LIST, [], "Accepted without effect: connectors here are Python.")
PIPELINE_CLASSPATHS = ConfigOption(
    "pipeline.classpaths", _LIST, [], "Accepted without effect: connectors here are Python."
)
RUNTIME_MODE = ConfigOption(
    "execution.runtime-mode",
    _ENUM,
    "STREAMING",
    "Who drives the operators: STREAMING, a gang of long-running tasks; BATCH, Spark stages, when all input is "
    "bounded; MICRO_BATCH, a query of Spark Structured Streaming; AUTOMATIC, BATCH when every source is bounded and "
    "STREAMING otherwise.",
    choices=("STREAMING", "BATCH", "AUTOMATIC", "MICRO_BATCH"),
)
BATCH_SAVEPOINT_PATH = ConfigOption(
    "execution.batch.savepoint-path",
    _STRING,
    None,
    "BATCH: end the job with a savepoint in this folder, which must not exist yet. A STREAMING job goes on from it.",
)
BATCH_BUFFER_SIZE = ConfigOption(
    "execution.batch.buffer-size",
    _MEMORY,
    16 << 20,
    "BATCH: at most about so many bytes of pickled results, and some ten thousand records, does a task gather before "
    "it cuts them to blocks for the shuffle. In memory, records take several times as much.",
    minimum=1,
)
MICRO_BATCH_LOCATION = ConfigOption(
    "tidegate.micro-batch.checkpoint-location",
    _STRING,
    None,
    "MICRO_BATCH: the checkpoint location of the streaming query: a folder of a file system that the driver and all "
    "executors see at the same path. A program that is started again with the same one goes on where it was. Unset: a "
    "folder with the job's id (pipeline.job-id) below execution.checkpointing.dir, which has to be such a folder too. "
    "Without that a temporary one, which goes with the job, with a warning; refused when Spark is not local.",
)
MICRO_BATCH_LOCATION_MUST_EXIST = ConfigOption(
    "tidegate.micro-batch.checkpoint-location-must-exist",
    _BOOLEAN,
    False,
    "MICRO_BATCH: refuse to start where the checkpoint location has no job yet. Set it when the job has run once: a "
    "location that was deleted, or whose disk is not mounted, is an error then, and no job that begins from nothing.",
)
MICRO_BATCH_TRIGGER = ConfigOption(
    "tidegate.micro-batch.trigger",
    _ENUM,
    "PROCESSING_TIME",
    "MICRO_BATCH: PROCESSING_TIME, a batch every tidegate.micro-batch.interval; AVAILABLE_NOW, batches until nothing "
    "is left to read, then the job finishes. CONTINUOUS and REAL_TIME are refused: Spark runs no Python operators in "
    "them.",
    choices=("PROCESSING_TIME", "AVAILABLE_NOW", "CONTINUOUS", "REAL_TIME"),
)
MICRO_BATCH_INTERVAL = ConfigOption(
    "tidegate.micro-batch.interval",
    _DURATION,
    0,
    "MICRO_BATCH: time from the start of one batch to the start of the next. 0: one after the other.",
    minimum=0,
)
MICRO_BATCH_MAX_RECORDS = ConfigOption(
    "tidegate.micro-batch.max-records",
    _INTEGER,
    1_000_000,
    "MICRO_BATCH: about so many records does a source read in one batch, over all its subtasks.",
    minimum=1,
)
MICRO_BATCH_MAX_BYTES = ConfigOption(
    "tidegate.micro-batch.max-bytes",
    _MEMORY,
    256 << 20,
    "MICRO_BATCH: about so many bytes does each subtask of a source read in one batch, estimated as records in memory, "
    "and at least one record. The results of a batch are in the memory of the tasks that they go to.",
    minimum=1,
)
MICRO_BATCH_BUCKETS = ConfigOption(
    "tidegate.micro-batch.buckets",
    _INTEGER,
    128,
    "MICRO_BATCH: into so many buckets, at least, are the keys of an operator cut. A bucket is what is read from "
    "Spark's state store and written to it at once: few are good for large batches that touch most keys, many for "
    "small ones. There are at least as many as key groups.",
    minimum=1,
)
BUFFER_TIMEOUT = ConfigOption(
    "execution.buffer-timeout.interval",
    _DURATION,
    100,
    "Longest time a record waits in an output batch that is not full. 0: sent after every slice of work, -1: only full "
    "batches are sent.",
    ("execution.buffer-timeout",),
    minimum=-1,
)
BUFFER_TIMEOUT_ENABLED = ConfigOption(
    "execution.buffer-timeout.enabled", _BOOLEAN, True, "false: batches are sent only when they are full."
)

# ---------------------------------------------------------------- checkpoints

CHECKPOINT_INTERVAL = ConfigOption(
    "execution.checkpointing.interval",
    _DURATION,
    None,
    "Time from the start of one periodic checkpoint to the start of the next. Unset: no checkpoints.",
    minimum=1,
)
CHECKPOINT_MODE = ConfigOption(
    "execution.checkpointing.mode",
    _ENUM,
    "EXACTLY_ONCE",
    "EXACTLY_ONCE aligns barriers; AT_LEAST_ONCE never blocks, and records may be counted twice after a failure.",
    choices=("EXACTLY_ONCE", "AT_LEAST_ONCE"),
)
CHECKPOINT_TIMEOUT = ConfigOption(
    "execution.checkpointing.timeout", _DURATION, 600_000, "A checkpoint that takes longer is aborted.", minimum=1
)
CHECKPOINT_MIN_PAUSE = ConfigOption(
    "execution.checkpointing.min-pause",
    _DURATION,
    0,
    "Shortest time from the end of one checkpoint to the start of the next.",
    minimum=0,
)
MAX_CONCURRENT_CHECKPOINTS = ConfigOption(
    "execution.checkpointing.max-concurrent-checkpoints",
    _INTEGER,
    1,
    "How many checkpoints may be under way at once.",
    minimum=1,
)
TOLERABLE_FAILED_CHECKPOINTS = ConfigOption(
    "execution.checkpointing.tolerable-failed-checkpoints",
    _INTEGER,
    0,
    "How many checkpoints in a row may fail before the job fails over.",
    minimum=0,
)
UNALIGNED_ENABLED = ConfigOption(
    "execution.checkpointing.unaligned.enabled",
    _BOOLEAN,
    False,
    "Barriers overtake buffered records, which become part of the checkpoint. Only with EXACTLY_ONCE.",
    ("execution.checkpointing.unaligned",),
)
UNALIGNED_FORCED = ConfigOption(
    "execution.checkpointing.unaligned.forced",
    _BOOLEAN,
    False,
    "Accepted without effect: every edge takes part in unaligned checkpoints, there is nothing to force.",
)
ALIGNED_CHECKPOINT_TIMEOUT = ConfigOption(
    "execution.checkpointing.aligned-checkpoint-timeout",
    _DURATION,
    0,
    "With unaligned checkpoints: start aligned and become unaligned when alignment takes longer. 0: unaligned at once.",
    minimum=0,
)
CHECKPOINT_DIR = ConfigOption(
    "execution.checkpointing.dir",
    _STRING,
    None,
    "URI of the folder in which checkpoints are stored, e.g. `file:///data/checkpoints` or `s3://bucket/checkpoints`.",
    ("state.checkpoints.dir",),
)
SAVEPOINT_DIR = ConfigOption(
    "execution.checkpointing.savepoint-dir",
    _STRING,
    None,
    "URI of the folder for savepoints that are triggered without one.",
    ("state.savepoints.dir",),
)
NUM_RETAINED = ConfigOption(
    "execution.checkpointing.num-retained",
    _INTEGER,
    1,
    "How many completed checkpoints are kept.",
    ("state.checkpoints.num-retained",),
    minimum=1,
)
EXTERNALIZED_RETENTION = ConfigOption(
    "execution.checkpointing.externalized-checkpoint-retention",
    _ENUM,
    "NO_EXTERNALIZED_CHECKPOINTS",
    "What happens to the last checkpoints when the job ends. RETAIN_ON_CANCELLATION keeps them when it is cancelled or "
    "fails, DELETE_ON_CANCELLATION when it fails, NO_EXTERNALIZED_CHECKPOINTS never.",
    choices=("NO_EXTERNALIZED_CHECKPOINTS", "RETAIN_ON_CANCELLATION", "DELETE_ON_CANCELLATION"),
)
INCREMENTAL = ConfigOption(
    "execution.checkpointing.incremental",
    _BOOLEAN,
    True,
    "A checkpoint in files stores only the keyed state that changed since the one before. false: every checkpoint is "
    "full. Checkpoints in the JobManager's memory are always full. (Flink's default is false: there it has a price.)",
    ("state.backend.incremental",),
)
CHECKPOINT_STORAGE = ConfigOption(
    "execution.checkpointing.storage",
    _ENUM,
    None,
    "Where checkpoints go. Unset: filesystem when a folder is set, otherwise the memory of the JobManager. With "
    "jobmanager and a folder the state stays small and in memory, and each checkpoint is also written to the folder.",
    ("state.checkpoint-storage",),
    choices=("jobmanager", "filesystem"),
)
SNAPSHOT_COMPRESSION = ConfigOption(
    "execution.checkpointing.snapshot-compression",
    _BOOLEAN,
    False,
    "Compress the state in checkpoints (zlib at its fastest level, on the helper thread that writes it).",
    ("execution.checkpointing.use-snapshot-compression",),
)
CHECKPOINTS_AFTER_TASKS_FINISH = ConfigOption(
    "execution.checkpointing.checkpoints-after-tasks-finish",
    _BOOLEAN,
    True,
    "Go on taking checkpoints when some tasks have finished. false: none between the end of the first task's data and "
    "the end of all, when the last one is taken in any case.",
    ("execution.checkpointing.checkpoints-after-tasks-finish.enabled",),
)

# ---------------------------------------------------------------- state and its recovery

STATE_BACKEND = ConfigOption(
    "state.backend.type",
    _ENUM,
    "hashmap",
    "Where working state lives: hashmap on the heap, rocksdb on the worker's local disk, larger than memory.",
    ("state.backend",),
    choices=("hashmap", "rocksdb"),
    synonyms={"jobmanager": "hashmap", "filesystem": "hashmap", "memory": "hashmap"},
)
ROCKSDB_LOCAL_DIRECTORIES = ConfigOption(
    "state.backend.rocksdb.localdir",
    _LIST,
    [],
    "Folders on the workers' local disks for RocksDB's files; a worker takes one of them. Unset: the system's folder "
    "for temporary files.",
)
ROCKSDB_MEMORY_PER_SLOT = ConfigOption(
    "state.backend.rocksdb.memory.fixed-per-slot",
    _MEMORY,
    None,
    "Memory for RocksDB state of one slot, shared by its operators: half for working values as Python objects, half "
    "for RocksDB's caches and buffers. Unset: 256 mb.",
    minimum=4 << 20,
)
ROCKSDB_WRITE_BUFFER_RATIO = ConfigOption(
    "state.backend.rocksdb.memory.write-buffer-ratio",
    _FLOAT,
    0.5,
    "Share of RocksDB's own memory that its write buffers may take.",
    minimum=0.05,
    maximum=0.95,
)
ROCKSDB_BLOCK_CACHE_SIZE = ConfigOption(
    "state.backend.rocksdb.block.cache-size",
    _MEMORY,
    None,
    "Size of the slot's block cache, write buffers included. Unset: half of the memory of the slot.",
    minimum=1 << 20,
)
ROCKSDB_WRITE_BUFFER_SIZE = ConfigOption(
    "state.backend.rocksdb.writebuffer.size",
    _MEMORY,
    None,
    "Size at which the write buffer of one operator goes to disk. Unset: half of the slot's write buffers, at most "
    "64 mb.",
    minimum=64 << 10,
)
ROCKSDB_BLOCK_SIZE = ConfigOption(
    "state.backend.rocksdb.block.blocksize",
    _MEMORY,
    None,
    "Size of the blocks that are read and cached. Unset: 4 kb, or what the predefined options say.",
    minimum=1 << 10,
)
ROCKSDB_COMPRESSION = ConfigOption(
    "state.backend.rocksdb.compression.per.level",
    _LIST,
    ["snappy"],
    "Compression of RocksDB's files: none, snappy, lz4, lz4hc, zlib, bz2 or zstd (or Flink's names, such as "
    "LZ4_COMPRESSION); one for all levels, or one per level.",
)
ROCKSDB_COMPACTION_STYLE = ConfigOption(
    "state.backend.rocksdb.compaction.style",
    _ENUM,
    "universal",
    "How RocksDB merges its files. universal rewrites least, so that incremental checkpoints upload little more than "
    "what changed; level takes less disk space (Flink's default).",
    choices=("level", "universal"),
)
ROCKSDB_THREADS = ConfigOption(
    "state.backend.rocksdb.thread.num",
    _INTEGER,
    None,
    "Threads for RocksDB's background work. Unset: 2, or what the predefined options say.",
    minimum=1,
)
ROCKSDB_PREDEFINED_OPTIONS = ConfigOption(
    "state.backend.rocksdb.predefined-options",
    _ENUM,
    "DEFAULT",
    "RocksDB settings by the kind of disk; single options that are set win.",
    choices=("DEFAULT", "SPINNING_DISK_OPTIMIZED", "SPINNING_DISK_OPTIMIZED_HIGH_MEM", "FLASH_SSD_OPTIMIZED"),
)
MAX_MEMORY_STATE_SIZE = ConfigOption(
    "state.storage.jobmanager.max-state-size",
    _MEMORY,
    5 << 20,
    "Largest state of one subtask that the memory of the JobManager takes in a checkpoint.",
    minimum=1,
)
RECOVERY_PATH = ConfigOption(
    "execution.state-recovery.path",
    _STRING,
    None,
    "A retained checkpoint or savepoint to start from.",
    ("execution.savepoint.path",),
)
RECOVERY_IGNORE_UNCLAIMED_STATE = ConfigOption(
    "execution.state-recovery.ignore-unclaimed-state",
    _BOOLEAN,
    False,
    "Start also when the checkpoint has state of operators that the job no longer has; that state is dropped.",
    ("execution.savepoint.ignore-unclaimed-state",),
)
STATE_CLASS_MAPPING = ConfigOption(
    "state.class-mapping",
    _MAP,
    {},
    "Classes that have moved since the state was stored: old name to new name, each `module.Class`, used when state is "
    "read, e.g. `jobs.old.Order:jobs.model.Order`.",
)
RECOVERY_CLAIM_MODE = ConfigOption(
    "execution.state-recovery.claim-mode",
    _ENUM,
    "NO_CLAIM",
    "Whether the job owns the checkpoint it starts from. CLAIM: it is deleted when as many newer ones are complete as "
    "are retained, and with them at the end of the job. NO_CLAIM: it is never deleted, and no checkpoint of the job "
    "depends on its files. LEGACY is the same as NO_CLAIM.",
    ("execution.savepoint-restore-mode",),
    choices=("NO_CLAIM", "CLAIM", "LEGACY"),
)

# ---------------------------------------------------------------- restarts

STOP_ON_REPEATED_FAILURE = ConfigOption(
    "tidegate.restart.stop-on-repeated-failure",
    _INTEGER,
    3,
    "The job fails when the same exception of a function, on the same record, has come so often without a checkpoint "
    "completed in between: another restart would only end in it again. Exceptions that tell of something outside the "
    "program (timeouts, lost connections, other OSErrors but those of wrong paths, refused requests and unreadable "
    "content, such as FileNotFoundError and gzip.BadGzipFile) do not count. 0: go on as the restart strategy says, "
    "which is also the default when restart-strategy.type is set.",
    minimum=0,
)
RESTART_STRATEGY = ConfigOption(
    "restart-strategy.type",
    _ENUM,
    None,
    "What to do when the job fails. Unset: exponential-delay when checkpointing is on, none otherwise.",
    ("restart-strategy",),
    choices=("none", "fixed-delay", "failure-rate", "exponential-delay"),
    synonyms={
        "off": "none",
        "disable": "none",
        "fixeddelay": "fixed-delay",
        "failurerate": "failure-rate",
        "exponentialdelay": "exponential-delay",
    },
)
FIXED_DELAY_ATTEMPTS = ConfigOption(
    "restart-strategy.fixed-delay.attempts", _INTEGER, 1, "How often the job is restarted.", minimum=1
)
FIXED_DELAY_DELAY = ConfigOption(
    "restart-strategy.fixed-delay.delay", _DURATION, 1000, "Wait before each restart.", minimum=0
)
FAILURE_RATE_MAX_FAILURES = ConfigOption(
    "restart-strategy.failure-rate.max-failures-per-interval",
    _INTEGER,
    1,
    "How many failures within the interval are followed by a restart; one more fails the job.",
    minimum=1,
)
FAILURE_RATE_INTERVAL = ConfigOption(
    "restart-strategy.failure-rate.failure-rate-interval",
    _DURATION,
    60_000,
    "The interval in which failures are counted.",
    minimum=1,
)
FAILURE_RATE_DELAY = ConfigOption(
    "restart-strategy.failure-rate.delay", _DURATION, 1000, "Wait before each restart.", minimum=0
)
EXPONENTIAL_INITIAL_BACKOFF = ConfigOption(
    "restart-strategy.exponential-delay.initial-backoff", _DURATION, 1000, "Wait before the first restart.", minimum=1
)
EXPONENTIAL_MAX_BACKOFF = ConfigOption(
    "restart-strategy.exponential-delay.max-backoff", _DURATION, 60_000, "Longest wait before a restart.", minimum=1
)
EXPONENTIAL_MULTIPLIER = ConfigOption(
    "restart-strategy.exponential-delay.backoff-multiplier",
    _FLOAT,
    1.5,
    "By how much the wait grows with each restart.",
    minimum=1.0,
)
EXPONENTIAL_RESET_THRESHOLD = ConfigOption(
    "restart-strategy.exponential-delay.reset-backoff-threshold",
    _DURATION,
    3_600_000,
    "The wait starts small again when the job ran this long without a failure.",
    minimum=1,
)
EXPONENTIAL_JITTER = ConfigOption(
    "restart-strategy.exponential-delay.jitter-factor",
    _FLOAT,
    0.1,
    "A random part, as a share of the wait, is added or taken off.",
    minimum=0.0,
    maximum=1.0,
)
EXPONENTIAL_ATTEMPTS = ConfigOption(
    "restart-strategy.exponential-delay.attempts-before-reset-backoff",
    _INTEGER,
    None,
    "How many restarts are tried before the wait was reset; one more failure fails the job.",
    minimum=1,
    special=("infinite",),
)

# ---------------------------------------------------------------- failure detection and the end of tasks

HEARTBEAT_INTERVAL = ConfigOption(
    "heartbeat.interval", _DURATION, 1000, "How often the JobManager and the slots send heartbeats.", minimum=1
)
HEARTBEAT_TIMEOUT = ConfigOption(
    "heartbeat.timeout", _DURATION, 8000, "A slot or JobManager that is silent for longer is taken for dead.", minimum=1
)
CANCELLATION_INTERVAL = ConfigOption(
    "task.cancellation.interval",
    _DURATION,
    30_000,
    "Wait before a task is asked again to leave. Accepted without effect: it is told once, and killed when it stays.",
    minimum=1,
)
CANCELLATION_TIMEOUT = ConfigOption(
    "task.cancellation.timeout",
    _DURATION,
    180_000,
    "A task that has not left this long after it was told to has its worker killed. 0: never, a restart waits until it "
    "has left. The default is what Flink shows; as long as nothing is set, a worker is killed after 1 s, since that is "
    "part of the downtime of a recovery.",
    minimum=0,
)
LATENCY_TRACKING_INTERVAL = ConfigOption(
    "metrics.latency.interval",
    _DURATION,
    0,
    "How often latency markers leave the sources. 0: never. Accepted without effect: this version has no markers yet.",
    minimum=0,
)

# ---------------------------------------------------------------- high availability

HA_TYPE = ConfigOption(
    "high-availability.type",
    _ENUM,
    "NONE",
    "Where a job's lease and record are kept, so that another driver finds them when this one dies and goes on from "
    "the newest checkpoint: `filesystem` (a local or shared disk, or S3 with conditional writes) or `zookeeper`. See "
    "docs/operations/high-availability.md.",
    ("high-availability",),
    choices=("NONE", "filesystem", "zookeeper"),
)
HA_STORAGE_DIR = ConfigOption(
    "high-availability.storageDir",
    _STRING,
    None,
    "`filesystem`: the folder for leases and records, one that all drivers of a job reach; it has to exist. "
    "`zookeeper`: without effect, checkpoints lie in `execution.checkpointing.dir` only.",
)
HA_CLUSTER_ID = ConfigOption(
    "high-availability.cluster-id",
    _STRING,
    None,
    "Names the job for its drivers: those with the same one go on with the same job, one at a time. Each job has its "
    "own.",
    ("high-availability.zookeeper.path.cluster-id",),
)
HA_LEASE_DURATION = ConfigOption(
    "tidegate.high-availability.lease-duration",
    _DURATION,
    5000,
    "How long a driver leads after it has last renewed its lease: as long does another one wait that cannot see "
    "whether it is alive. `heartbeat.interval` must be less than half of it.",
    minimum=500,
)
HA_STANDBY = ConfigOption(
    "tidegate.high-availability.standby",
    _BOOLEAN,
    False,
    "Wait for as long as another driver leads the job, with the Spark session ready, and take over then (`tidegate run "
    "--standby`). false: a driver that finds another one alive is refused.",
)
HA_ZOOKEEPER_QUORUM = ConfigOption(
    "high-availability.zookeeper.quorum",
    _STRING,
    None,
    "`zookeeper`: the servers, `host:port,host:port`. Needs `pip install 'tidegate[zookeeper]'`.",
)
HA_ZOOKEEPER_ROOT = ConfigOption(
    "high-availability.zookeeper.path.root",
    _STRING,
    "/tidegate",
    "`zookeeper`: the node below which each cluster id has its own.",
)
HA_ZOOKEEPER_ACL = ConfigOption(
    "high-availability.zookeeper.client.acl",
    _ENUM,
    "open",
    "`zookeeper`: who may read and change the nodes of a job: `open` everybody who reaches the servers, `creator` "
    "those with the same user name and password. Nodes that are made above them get the same rights.",
    choices=("open", "creator"),
)
HA_ZOOKEEPER_USERNAME = ConfigOption(
    "tidegate.high-availability.zookeeper.username",
    _STRING,
    None,
    "`zookeeper`: by which the drivers make themselves known to the servers (scheme `digest`).",
)
HA_ZOOKEEPER_PASSWORD = ConfigOption(
    "tidegate.high-availability.zookeeper.password",
    _STRING,
    None,
    "The password of that user. It is not shown anywhere.",
)

# ---------------------------------------------------------------- the port for commands

REST_ENABLED = ConfigOption(
    "rest.enabled",
    _BOOLEAN,
    True,
    "Open a port for the job's page, REST, Prometheus and the `tidegate` command, found through a file that only the "
    "user can read.",
)
REST_BIND_ADDRESS = ConfigOption(
    "rest.bind-address",
    _STRING,
    "127.0.0.1",
    "Where that port listens. On another address than the loopback `rest.ssl.enabled` is required, or the job is "
    "refused: every call carries the job's token.",
)
REST_ADDRESS = ConfigOption(
    "rest.address",
    _STRING,
    None,
    "The name under which that port is reached, as its certificate has it. Unset: `rest.bind-address`, and this "
    "machine's name when that is 0.0.0.0 or ::.",
)
REST_PORT = ConfigOption(
    "rest.port",
    _INTEGER,
    0,
    "Number of that port. 0: any free one. When it is in use, the next free one is taken, and the log says so.",
    ("rest.bind-port",),
    minimum=0,
    maximum=65535,
)
REST_SSL_ENABLED = ConfigOption(
    "rest.ssl.enabled",
    _BOOLEAN,
    False,
    "Speak https on that port (TLS 1.2 or newer). Certificates are PEM files, not Java's stores.",
    ("security.ssl.rest.enabled",),
)
REST_SSL_CERTIFICATE = ConfigOption(
    "rest.ssl.certificate",
    _STRING,
    None,
    "The port's certificate, a PEM file on the driver's machine, followed by those between it and its authority.",
)
REST_SSL_KEY = ConfigOption("rest.ssl.key", _STRING, None, "The key of that certificate, a PEM file.")
REST_SSL_KEY_PASSWORD = ConfigOption(
    "rest.ssl.key-password",
    _STRING,
    None,
    "The password of that key, when it has one.",
    ("security.ssl.rest.key-password",),
)
REST_SSL_CA = ConfigOption(
    "rest.ssl.ca",
    _STRING,
    None,
    "The authority that the `tidegate` command checks the certificate against, a PEM file; with a certificate that "
    "signed itself, that one. Unset: the authorities of the system.",
)

# ---------------------------------------------------------------- ours

PRINT_ON_DRIVER = ConfigOption(
    "tidegate.print.on-driver",
    _BOOLEAN,
    None,
    "What print sinks write goes to the standard output and error of the program; false: to those of the workers. "
    "Unset: true when Spark is local. A BATCH job prints there when it has succeeded, a MICRO_BATCH job "
    "when a batch has.",
)
OTEL_ENDPOINT = ConfigOption(
    "tidegate.otel.endpoint",
    _STRING,
    None,
    "URL of an OpenTelemetry collector's OTLP/HTTP port, such as `http://localhost:4318`, to which metrics and traces "
    "of the job are pushed. Unset: nothing is. Needs `pip install 'tidegate[otel]'`.",
)
OTEL_HEADERS = ConfigOption(
    "tidegate.otel.headers", _MAP, {}, "Headers of those requests, for example `Authorization:Bearer abc`."
)
OTEL_INTERVAL = ConfigOption("tidegate.otel.interval", _DURATION, 10_000, "How often they are pushed.", minimum=100)
PROGRESS = ConfigOption(
    "tidegate.progress.enabled",
    _BOOLEAN,
    True,
    "`execute()` of a bounded job shows a line of progress on the standard error, when that is a terminal, and in the "
    "cell of a notebook.",
)
LOG_LEVEL = ConfigOption(
    "tidegate.logging.level",
    _MAP,
    {},
    "Levels of loggers of Python's `logging`, `root` for that of all: `root:INFO,my.module:DEBUG`. They hold in the "
    "workers and in the program. Those that are not named here have in the workers the level that they have in the "
    "program when the job is submitted.",
)
LOG_FORMAT = ConfigOption(
    "tidegate.logging.format",
    _ENUM,
    "text",
    "How workers write their lines, and the program too when it has set up no logging of its own and one of these "
    "settings is given. json: an object per line, with job, operator and subtask.",
    choices=("text", "json"),
)
LOG_ON_DRIVER = ConfigOption(
    "tidegate.logging.on-driver",
    _BOOLEAN,
    None,
    "Lines that functions log in the workers go to the loggers of the program; false: to the standard error of the "
    "workers, which on a cluster is the executor's log. Unset: true when Spark is local. STREAMING mode.",
)
NETWORK_BATCH_SIZE = ConfigOption(
    "tidegate.network.batch-size",
    _INTEGER,
    1024,
    "A batch between two tasks is sent when it has this many records; it never has twice as many. Also the most that a "
    "task takes up between two looks at its mailbox.",
    minimum=1,
)
NETWORK_CREDITS = ConfigOption(
    "tidegate.network.credits-per-channel",
    _INTEGER,
    4,
    "How many batches may be under way on one channel; bounds memory and sets the strength of back-pressure. A record "
    "that is larger than a batch should be takes the place of several.",
    minimum=1,
)
NETWORK_MAX_BATCH_BYTES = ConfigOption(
    "tidegate.network.max-batch-bytes",
    _MEMORY,
    1 << 20,
    "A batch between two tasks is sent when its records take about this much memory; it never has twice as much unless "
    "it is a single record.",
    minimum=1,
)
SLOT_START_TIMEOUT = ConfigOption(
    "tidegate.slot.start-timeout",
    _DURATION,
    60_000,
    "How long the workers may take to start and register before the attempt counts as failed.",
    minimum=1,
)
SLOT_RESTORE_TIMEOUT = ConfigOption(
    "tidegate.slot.restore-timeout",
    _DURATION,
    3_600_000,
    "How long the workers may take to read the state of the checkpoint and to open their functions, before the attempt "
    "counts as failed and is repeated: a storage that hangs raises no error. Longer than the longest restore. 0: no "
    "limit.",
    minimum=0,
)
CHECKPOINT_TRACE = ConfigOption(
    "tidegate.checkpoint.trace",
    _BOOLEAN,
    False,
    "Print every barrier, alignment and snapshot, for learning and debugging.",
)
CHECK_MUTATIONS = ConfigOption(
    "tidegate.debug.check-mutations",
    _BOOLEAN,
    False,
    "For debugging: fail when a function changes state in place without writing it back, naming operator, state and "
    "key, and warn when it changes the records that it is given. On in tidegate.testing unless the configuration says "
    "otherwise. Every object is pickled before and after, so it is slow; off, it costs nothing.",
)
CHECKPOINT_MAX_INCREMENTS = ConfigOption(
    "tidegate.checkpoint.max-increments",
    _INTEGER,
    10,
    "How many increments may follow a full snapshot before the next full one.",
    minimum=0,
)
CHECKPOINT_HISTORY_SIZE = ConfigOption(
    "tidegate.checkpoint.history-size", _INTEGER, 100, "How many checkpoints the statistics remember.", minimum=1
)
HISTORY_DIR = ConfigOption(
    "tidegate.history.dir",
    _STRING,
    None,
    "Where the last view of a job is kept for `tidegate ui` and `tidegate show`. Without: a folder of the user's own.",
)
HISTORY_SIZE = ConfigOption(
    "tidegate.history.size",
    _INTEGER,
    100,
    "How many jobs that folder keeps, the newest. 0: this job is not kept.",
    minimum=0,
)
SINK_COMMIT_RETRIES = ConfigOption(
    "tidegate.sink.commit-retries",
    _INTEGER,
    10,
    "How often a failed commit of a sink is tried again before the job fails over.",
    minimum=0,
)
SINK_COMMIT_BACKOFF = ConfigOption(
    "tidegate.sink.commit-backoff",
    _DURATION,
    100,
    "Wait before a failed commit is tried again; doubles with each try.",
    minimum=0,
)
STORAGE_PERMISSIONS = ConfigOption(
    "tidegate.storage.permissions",
    _ENUM,
    "owner",
    "Who may read what is made on local and shared disks: checkpoints, savepoints, cached and staged records. `owner`: "
    "0700 for folders and 0600 for files; `group`: 0750 and 0640; `umask`: as the umask says. RocksDB's working state "
    "is always the owner's. What sinks write is not meant: it follows the umask.",
    choices=("owner", "group", "umask"),
)
CACHE_DIR = ConfigOption(
    "tidegate.cache.dir",
    _STRING,
    None,
    "Folder below which the records of cached streams (DataStream.cache) are kept, and, when there is no checkpoint "
    "directory, staged DataFrames (from_spark, to_spark). Unset: a temporary folder of the driver's machine, which is "
    "enough on local masters; on a cluster it has to be one that all workers reach.",
)
QUERYABLE_STATE = ConfigOption(
    "queryable-state.enable",
    _BOOLEAN,
    True,
    "Let those who may look at the job look at its keyed state too (JobClient.get_state, REST, the page). Unlike in "
    "Flink this is on unless it is switched off: it takes the job's token.",
)
QUERYABLE_STATE_HIDDEN = ConfigOption(
    "tidegate.queryable-state.hidden",
    _LIST,
    [],
    "Keyed states that nobody can look at while the job runs, as `operator/state`: the operator's uid or name, and `*` "
    "stands for any part (`payments/*`, `*/card number`). Their sizes are shown. Files of checkpoints are protected by "
    "their permissions alone.",
)
COMMITTED_MAX_READ = ConfigOption(
    "tidegate.queryable-state.committed.max-read",
    _MEMORY,
    256 << 20,
    "How much of a checkpoint's files one look at the committed state may read, in the driver: what is fetched for it, "
    "uncompressed, and with RocksDB also the database of each subtask that has a key of it. A look that takes more is "
    "an error.",
    minimum=1,
)
STATE_CHANGELOG = ConfigOption(
    "state.changelog.enabled",
    _BOOLEAN,
    False,
    "Accepted without effect: checkpoints are incremental in both backends.",
    ("state.backend.changelog.enabled",),
)
PYTHON_FILES = ConfigOption(
    "tidegate.python.files",
    _LIST,
    [],
    "Files and folders with Python code that are shipped to the workers.",
    ("python.files",),
)

ALL_OPTIONS: tuple[ConfigOption, ...] = tuple(v for v in list(globals().values()) if isinstance(v, ConfigOption))
"""All options in the order of this file."""

KEYS: dict[str, ConfigOption] = {key: option for option in ALL_OPTIONS for key in option.keys}
"""Every key, aliases too, to its option."""


def read(config: Configuration, option: ConfigOption) -> Any:
    """The typed value: what is set under the key or an alias, else the default. Lengths of time are ms, sizes bytes."""
    return config.get(option)
