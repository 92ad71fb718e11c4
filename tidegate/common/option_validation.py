"""Checks a whole configuration against the table of options: are its keys known, are its values allowed?"""

from __future__ import annotations

import difflib
import warnings

from tidegate.common import options
from tidegate.common.configuration import Configuration
from tidegate.common.errors import ConfigurationError

PASSED_ON = "spark."
"""Keys that start so are Spark's own and are handed to the session."""

FLINK_PREFIXES = (
    "taskmanager.",
    "jobmanager.",
    "rest.",
    "metrics.",
    "kubernetes.",
    "yarn.",
    "env.",
    "python.",
    "table.",
    "security.",
    "high-availability.",
    "web.",
    "classloader.",
    "cluster.",
    "blob.",
    "akka.",
    "pekko.",
    "fs.",
    "s3.",
    "state.",
    "client.",
    "containerized.",
    "execution.attached",
    "execution.batch-shuffle-mode",
    "execution.shutdown-on-",
    "execution.sorted-inputs.",
    "execution.submit-failed-job-",
    "execution.target",
    "historyserver.",
    "io.tmp.dirs",
    "local.number-",
    "pipeline.closure-cleaner-level",
    "pipeline.force-",
    "pipeline.generic-types",
    "pipeline.registered-",
    "pipeline.serialization-config",
    "pipeline.vertex-",
    "plugin.",
    "queryable-state.",
    "resourcemanager.",
    "slot.",
    "slotmanager.",
    "sql-client.",
    "zookeeper.",
)
"""Keys of Flink's that mean nothing here: a configuration may hold them, with a warning."""


def validate_keys(config: Configuration) -> None:
    """Raise ConfigurationError for an unknown key, naming the nearest; warn about Flink's unused ones."""
    for key in sorted(config.key_set()):
        if key in options.KEYS or key.startswith(PASSED_ON):
            continue
        if key.startswith(FLINK_PREFIXES):
            warnings.warn(f"The configuration key '{key}' has no effect in Tidegate.", UserWarning, stacklevel=2)
            continue
        raise ConfigurationError(f"Unknown configuration key '{key}'.{_suggestion(key)}")


def validate_values(config: Configuration) -> None:
    """Raise ConfigurationError for the first known key whose value is wrong."""
    for key in sorted(config.key_set()):
        option = options.KEYS.get(key)
        if option is not None:
            option.parse(config.get_raw(key), key)


def _suggestion(key: str) -> str:
    near = difflib.get_close_matches(key.lower().replace("_", "-"), options.KEYS, n=1, cutoff=0.6)
    return f" Did you mean '{near[0]}'?" if near else " docs/configuration.md lists all keys."
