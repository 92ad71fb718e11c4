"""`tidegate <command>`. Exit code 0: done; 1: it could not be done, and a sentence says why; 2: wrong arguments; 3, of
`run` alone: the program's job has ended for good, so it is no use to start the program again."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import tidegate
from tidegate.cli import chaos, gc, inspect, jobs, kafka, look, state
from tidegate.cli.errors import CommandError
from tidegate.common.errors import TidegateError

Command = Callable[[Any], dict[str, Any]]
Printer = Callable[[dict[str, Any]], None]


def main(argv: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if argv is None else argv)
    if given[:1] == ["submit"]:
        return _submit(given[1:])
    arguments = _parser().parse_args(given)
    seconds = getattr(arguments, "watch", None)
    try:
        code, answer = _once(arguments)
        while seconds is not None and code == 0 and answer.get("ended_ms") is None:
            time.sleep(max(0.1, seconds))
            if not arguments.json and sys.stdout.isatty():
                print("\033[H\033[2J", end="")
            code, answer = _once(arguments)
    except KeyboardInterrupt:
        return 130
    return code


def _once(arguments: Any) -> tuple[int, dict[str, Any]]:
    """The exit code and the answer, which has been printed."""
    try:
        answer = arguments.command(arguments)
    except TidegateError as error:
        if arguments.json:
            print(json.dumps({"error": str(error)}))
        else:
            print(f"tidegate: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, CommandError) else 1, {}
    try:
        if arguments.json:
            print(json.dumps(answer))
        else:
            arguments.show(answer)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough: `tidegate inspect ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python would complain again at the end
        return 1 if answer.get("problems") else 0, {"ended_ms": 0}
    if not arguments.json:
        for problem in answer.get("problems", ()):
            print(f"tidegate: {problem}", file=sys.stderr)
    return 1 if answer.get("problems") else 0, answer


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tidegate", description="Run and look after Tidegate's streaming jobs.")
    parser.add_argument("--version", action="version", version=f"tidegate {tidegate.__version__}")
    commands = parser.add_subparsers(required=True, metavar="<command>")

    run = _command(commands, "run", "run a program", _run, lambda answer: None)
    run.add_argument("-s", "--from-savepoint", metavar="PATH", help="the checkpoint or savepoint to start from")
    run.add_argument("-p", "--parallelism", type=int, help="for operators that do not set their own")
    run.add_argument(
        "--allow-non-restored-state", action="store_true", help="drop state of operators that the job no longer has"
    )
    run.add_argument(
        "--standby",
        action="store_true",
        help="with high availability: wait while another driver leads the job, and take over when it is gone",
    )
    run.add_argument("-D", dest="define", action="append", default=[], metavar="KEY=VALUE", help="a setting")
    run.add_argument("--no-progress", action="store_true", help="no line of progress on the terminal")
    run.add_argument("program", help="a Python file")
    run.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")

    commands.add_parser("submit", help="run a program with spark-submit, whose options it takes")

    listing = _command(commands, "list", "the running jobs of this user", jobs.list_jobs, jobs.print_jobs)
    listing.add_argument("--all", action="store_true", help="those of the history too")
    listing.add_argument("--watch", nargs="?", type=float, const=2.0, metavar="SECONDS", help="until Ctrl-C")
    listing.add_argument("--history", metavar="DIR", help="the folder of the history, if not the user's own")

    for name, text, command, printer in (
        ("show", "a job, its vertices and their figures", look.show, look.print_show),
        ("checkpoints", "the checkpoints of a job", look.checkpoints, look.print_checkpoints),
        ("exceptions", "the failures of a job", look.exceptions, look.print_exceptions),
        ("metrics", "all metrics of a job", look.metrics, look.print_metrics),
    ):
        shown = _command(commands, name, text, command, printer)
        shown.add_argument("job", help="id, beginning of the id, or name; running or ended")
        shown.add_argument("--watch", nargs="?", type=float, const=2.0, metavar="SECONDS", help="until the job ends")
        shown.add_argument("--history", metavar="DIR", help="the folder of the history, if not the user's own")

    page = _command(commands, "ui", "the page of running and ended jobs, until Ctrl-C", look.ui, lambda answer: None)
    page.add_argument("--port", type=int, default=0, help="or the next free one; otherwise any free one")
    page.add_argument("--bind-address", default="127.0.0.1", metavar="ADDRESS", help="another one needs TLS")
    page.add_argument("--address", default="", metavar="NAME", help="by which it is reached, as in the certificate")
    page.add_argument("--certificate", metavar="FILE", help="for https, in PEM")
    page.add_argument("--key", metavar="FILE", help="of the certificate, in PEM")
    page.add_argument("--read-only", action="store_true", help="print the address that allows only to look")
    page.add_argument("--history", metavar="DIR", help="the folder of the history, if not the user's own")

    savepoint = _command(
        commands, "savepoint", "take a savepoint while the job goes on", jobs.savepoint, lambda a: print(a["path"])
    )
    savepoint.add_argument("job", help="id, beginning of the id, or name")
    savepoint.add_argument("directory", nargs="?", help="the folder that gets it; otherwise the job's own setting")

    stop = _command(commands, "stop", "end a job with a savepoint", jobs.stop, lambda a: print(a["path"]))
    stop.add_argument("job", help="id, beginning of the id, or name")
    stop.add_argument("--drain", action="store_true", help="bring event time to its end first")
    stop.add_argument("-p", "--savepoint-path", metavar="DIR", help="the folder that gets the savepoint")

    cancel = _command(
        commands, "cancel", "end a job at once", jobs.cancel, lambda a: print(f"job {a['job_id']} is {a['status']}")
    )
    cancel.add_argument("job", help="id, beginning of the id, or name")

    inspected = _command(
        commands, "inspect", "what is in a checkpoint or savepoint", inspect.inspect, inspect.print_snapshot
    )
    inspected.add_argument("path", help="its folder, or a job's checkpoint folder: then the latest one")
    inspected.add_argument("--entries", type=int, default=3, metavar="N", help="how many entries of each state to show")

    checkpoint = commands.add_parser("checkpoint", help="look after checkpoint directories")
    below = checkpoint.add_subparsers(required=True, metavar="<command>")
    collect = _command(below, "gc", "find what crashes have left behind", gc.collect, gc.print_report)
    collect.add_argument("directory", help="a checkpoint directory, or that of one job in it")
    collect.add_argument("--delete", action="store_true", help="delete it")
    kafka.add_commands(commands, _command)
    chaos.add_command(commands, _command)
    state.add_command(commands, _command)
    return parser


def _command(commands: Any, name: str, help: str, command: Command, show: Printer) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=help, description=help.capitalize() + ".")
    parser.add_argument("--json", action="store_true", help="answer in JSON")
    parser.set_defaults(command=command, show=show)
    return parser


def _run(arguments: Any) -> dict[str, Any]:
    from tidegate.cli.run import run

    return run(arguments)


def _submit(arguments: list[str]) -> int:
    """Its arguments are those of `spark-submit`, so they are not looked at here."""
    from tidegate.cli.submit import submit

    try:
        return submit(arguments)
    except KeyboardInterrupt:
        return 130
    except TidegateError as error:
        print(f"tidegate: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
