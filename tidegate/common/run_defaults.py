"""What `tidegate run` tells the program that it starts: settings that hold unless the program makes its own."""

from __future__ import annotations

import json
import os

from tidegate.common.configuration import COMMAND, Configuration
from tidegate.common.errors import ConfigurationError

VARIABLE = "TIDEGATE_RUN_DEFAULTS"
"""Environment variable: a JSON object of configuration keys and values."""


def run_defaults() -> Configuration:
    """Empty for a program that was not started by `tidegate run`."""
    text = os.environ.get(VARIABLE)
    if not text:
        return Configuration()
    try:
        return Configuration.from_dict(dict(json.loads(text))).come_from(COMMAND)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"the environment variable {VARIABLE} is not a JSON object: {error}") from error
