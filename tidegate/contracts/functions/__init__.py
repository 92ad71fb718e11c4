"""What the user implements: functions, and the contexts they are given.

Every function may override `open`, `finish` and `close`. The runtime calls, on one thread, in this order::

    initialize_state (CheckpointedFunction only)   open   <records, timers, snapshot_state>*   finish   snapshot_state*
    close

`finish` is called only at the end of the input. `close` is also called after a failure, once, when `open` was called.
An instance is pickled to the workers: create connections, locks and the like in `open`, not in the constructor.
"""

from __future__ import annotations

from tidegate.contracts.functions.asynchronous import (
    AsyncFunction,
    AsyncFunctionDescriptor,
)
from tidegate.contracts.functions.base import (
    CheckpointedFunction,
    CheckpointListener,
    Function,
)
from tidegate.contracts.functions.broadcast import (
    BaseBroadcastProcessFunction,
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
)
from tidegate.contracts.functions.contexts import (
    KeyedStateStore,
    RuntimeContext,
)
from tidegate.contracts.functions.old_connectors import (
    SinkFunction,
    SourceFunction,
)
from tidegate.contracts.functions.process import (
    CoProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ProcessFunction,
)
from tidegate.contracts.functions.records import (
    AggregateFunction,
    CoFlatMapFunction,
    CoMapFunction,
    FilterFunction,
    FlatMapFunction,
    KeySelector,
    MapBatchesFunction,
    MapFunction,
    Partitioner,
    ReduceFunction,
)
from tidegate.contracts.functions.retries import AsyncRetryPredicate, AsyncRetryStrategy
from tidegate.contracts.functions.windows import (
    AllWindowFunction,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    WindowFunction,
)
from tidegate.contracts.timer_service import TimerService

__all__ = [
    "AggregateFunction",
    "AllWindowFunction",
    "AsyncFunction",
    "AsyncFunctionDescriptor",
    "AsyncRetryPredicate",
    "AsyncRetryStrategy",
    "BaseBroadcastProcessFunction",
    "BroadcastProcessFunction",
    "CheckpointListener",
    "CheckpointedFunction",
    "CoFlatMapFunction",
    "CoMapFunction",
    "CoProcessFunction",
    "FilterFunction",
    "FlatMapFunction",
    "Function",
    "KeySelector",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStateStore",
    "MapBatchesFunction",
    "MapFunction",
    "Partitioner",
    "ProcessAllWindowFunction",
    "ProcessFunction",
    "ProcessWindowFunction",
    "ReduceFunction",
    "RuntimeContext",
    "SinkFunction",
    "SourceFunction",
    "TimerService",
    "WindowFunction",
]
