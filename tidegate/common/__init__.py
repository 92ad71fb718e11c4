"""Types, rows, time, watermark strategies, configuration and restart strategies: PyFlink's `pyflink.common`.

Names are loaded when they are first asked for, so that a worker pays only for what it uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.common.lazy_names import lazy_names

if TYPE_CHECKING:
    from tidegate.common.completable_future import CompletableFuture
    from tidegate.common.config_options import ConfigOption, ConfigOptions
    from tidegate.common.configuration import Configuration
    from tidegate.common.execution_config import ExecutionConfig
    from tidegate.common.job_client import JobClient
    from tidegate.common.job_execution_result import JobExecutionResult
    from tidegate.common.job_id import JobID
    from tidegate.common.job_status import JobStatus
    from tidegate.common.restart_strategy import RestartStrategies, RestartStrategyConfiguration
    from tidegate.common.serialization import (
        BulkWriterFactory,
        ByteArraySchema,
        DeserializationSchema,
        Encoder,
        RowDataBulkWriterFactory,
        RowFieldExtractorSchema,
        SerializationSchema,
        SimpleStringSchema,
    )
    from tidegate.common.time import Duration, Instant, Time
    from tidegate.common.typeinfo import (
        BasicArrayTypeInfo,
        BasicType,
        BasicTypeInfo,
        DateTypeInfo,
        ExternalTypeInfo,
        InstantTypeInfo,
        ListTypeInfo,
        LocalTimeTypeInfo,
        MapTypeInfo,
        ObjectArrayTypeInfo,
        PickledBytesTypeInfo,
        PrimitiveArrayTypeInfo,
        RowTypeInfo,
        SqlTimeTypeInfo,
        TimestampTypeInfo,
        TimeTypeInfo,
        TupleTypeInfo,
        TypeInformation,
        Types,
    )
    from tidegate.common.types import Row, RowKind
    from tidegate.common.watermark_strategy import (
        AssignerWithPeriodicWatermarksWrapper,
        TimestampAssigner,
        WatermarkGenerator,
        WatermarkStrategy,
    )

_MODULES = {
    "completable_future": ("CompletableFuture",),
    "config_options": (
        "ConfigOption",
        "ConfigOptions",
    ),
    "configuration": ("Configuration",),
    "execution_config": ("ExecutionConfig",),
    "job_client": ("JobClient",),
    "job_execution_result": ("JobExecutionResult",),
    "job_id": ("JobID",),
    "job_status": ("JobStatus",),
    "restart_strategy": (
        "RestartStrategies",
        "RestartStrategyConfiguration",
    ),
    "serialization": (
        "BulkWriterFactory",
        "ByteArraySchema",
        "DeserializationSchema",
        "Encoder",
        "RowDataBulkWriterFactory",
        "RowFieldExtractorSchema",
        "SerializationSchema",
        "SimpleStringSchema",
    ),
    "time": (
        "Duration",
        "Instant",
        "Time",
    ),
    "typeinfo": (
        "BasicArrayTypeInfo",
        "BasicType",
        "BasicTypeInfo",
        "DateTypeInfo",
        "ExternalTypeInfo",
        "InstantTypeInfo",
        "ListTypeInfo",
        "LocalTimeTypeInfo",
        "MapTypeInfo",
        "ObjectArrayTypeInfo",
        "PickledBytesTypeInfo",
        "PrimitiveArrayTypeInfo",
        "RowTypeInfo",
        "SqlTimeTypeInfo",
        "TimeTypeInfo",
        "TimestampTypeInfo",
        "TupleTypeInfo",
        "TypeInformation",
        "Types",
    ),
    "types": (
        "Row",
        "RowKind",
    ),
    "watermark_strategy": (
        "AssignerWithPeriodicWatermarksWrapper",
        "TimestampAssigner",
        "WatermarkGenerator",
        "WatermarkStrategy",
    ),
}
_MODULE_OF = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}

__all__ = [
    "AssignerWithPeriodicWatermarksWrapper",
    "BasicArrayTypeInfo",
    "BasicType",
    "BasicTypeInfo",
    "BulkWriterFactory",
    "ByteArraySchema",
    "CompletableFuture",
    "ConfigOption",
    "ConfigOptions",
    "Configuration",
    "DateTypeInfo",
    "DeserializationSchema",
    "Duration",
    "Encoder",
    "ExecutionConfig",
    "ExternalTypeInfo",
    "Instant",
    "InstantTypeInfo",
    "JobClient",
    "JobExecutionResult",
    "JobID",
    "JobStatus",
    "ListTypeInfo",
    "LocalTimeTypeInfo",
    "MapTypeInfo",
    "ObjectArrayTypeInfo",
    "PickledBytesTypeInfo",
    "PrimitiveArrayTypeInfo",
    "RestartStrategies",
    "RestartStrategyConfiguration",
    "Row",
    "RowDataBulkWriterFactory",
    "RowFieldExtractorSchema",
    "RowKind",
    "RowTypeInfo",
    "SerializationSchema",
    "SimpleStringSchema",
    "SqlTimeTypeInfo",
    "Time",
    "TimeTypeInfo",
    "TimestampAssigner",
    "TimestampTypeInfo",
    "TupleTypeInfo",
    "TypeInformation",
    "Types",
    "WatermarkGenerator",
    "WatermarkStrategy",
]

__getattr__, __dir__ = lazy_names(__name__, _MODULE_OF)
