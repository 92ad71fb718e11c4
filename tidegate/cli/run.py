"""`tidegate run`: a program in a process of its own, with settings that hold unless it makes its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import Any

from tidegate.cli.errors import CommandError
from tidegate.common import options
from tidegate.common.configuration import Configuration
from tidegate.common.option_validation import validate_keys, validate_values
from tidegate.common.run_defaults import VARIABLE
from tidegate.storage.location import absolute
from tidegate.storage.metadata import read_metadata


def run(arguments: Any) -> dict[str, Any]:
    """Exits with the program's own code when that is not 0."""
    if not os.path.isfile(arguments.program):
        raise CommandError(f"there is no file '{arguments.program}'")
    environment = {**os.environ, VARIABLE: json.dumps(_defaults(arguments))}
    process = subprocess.Popen([sys.executable, arguments.program, *arguments.arguments], env=environment)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: process.send_signal(received))
    while True:
        try:
            code = process.wait()
            break
        except KeyboardInterrupt:  # the terminal has told the program as well: let it come to its end
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
    if code:
        raise CommandError(f"{arguments.program} ended with exit code {code}")
    return {"program": arguments.program, "exit_code": code}


def _defaults(arguments: Any) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for pair in arguments.define:
        key, separator, value = pair.partition("=")
        if not separator:
            raise CommandError(f"-D {pair}: write key=value")
        given[key] = value
    if arguments.from_savepoint:
        read_metadata(arguments.from_savepoint)  # says what is wrong with it before Spark is started
        given[options.RECOVERY_PATH.key] = absolute(arguments.from_savepoint)
    if arguments.standby:
        given[options.HA_STANDBY.key] = True
    if arguments.parallelism is not None:
        given[options.PARALLELISM.key] = arguments.parallelism
    if arguments.no_progress:
        given[options.PROGRESS.key] = False
    if arguments.allow_non_restored_state:
        given[options.RECOVERY_IGNORE_UNCLAIMED_STATE.key] = True
    configuration = Configuration.from_dict(given)
    validate_keys(configuration)
    validate_values(configuration)
    return given
