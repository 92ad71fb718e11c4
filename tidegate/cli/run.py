"""`tidegate run`: a program in a process of its own, with settings that hold unless it makes its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tidegate.cli.errors import CommandError, EndedForGoodError
from tidegate.common import options, run_end
from tidegate.common.configuration import Configuration
from tidegate.common.option_validation import validate_keys, validate_values
from tidegate.common.run_defaults import VARIABLE
from tidegate.storage.location import absolute
from tidegate.storage.metadata import read_metadata


def run(arguments: Any) -> dict[str, Any]:
    """Raises CommandError when the program does not end with 0; EndedForGoodError when its job, one with high
    availability, is recorded as failed or cancelled."""
    if not os.path.isfile(arguments.program):
        raise CommandError(f"there is no file '{arguments.program}'")
    defaults = json.dumps(_defaults(arguments))
    with tempfile.TemporaryDirectory(prefix="tidegate-run-") as folder:
        end = Path(folder) / "end"
        code = _code_of(arguments, {**os.environ, VARIABLE: defaults, run_end.VARIABLE: str(end)})
        ended = run_end.end_told(end)
    if not code:
        return {"program": arguments.program, "exit_code": code}
    said = f"{arguments.program} ended with exit code {code}"
    if ended is not None:
        raise EndedForGoodError(
            f"{said}: its job is recorded as {ended}, so to start it again would do nothing; another "
            "high-availability.cluster-id begins a new one"
        )
    raise CommandError(said)


def _code_of(arguments: Any, environment: dict[str, str]) -> int:
    process = subprocess.Popen([sys.executable, arguments.program, *arguments.arguments], env=environment)
    forwarded = (signal.SIGTERM, signal.SIGHUP)
    handlers = [signal.signal(n, lambda received, _: process.send_signal(received)) for n in forwarded]
    try:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:  # the terminal has told the program as well: let it come to its end
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(30)
    finally:
        for number, handler in zip(forwarded, handlers, strict=True):
            signal.signal(number, handler)


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
