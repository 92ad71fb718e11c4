"""The commands that show a job, running or ended: show, checkpoints, metrics, exceptions; and `ui`, the page."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from tidegate.cli.errors import CommandError
from tidegate.common.metric_values import numbers_of
from tidegate.jobmanager.job_view import JobView
from tidegate.web import documents
from tidegate.web.all_jobs import AllJobs
from tidegate.web.history import History
from tidegate.web.registry import running_jobs
from tidegate.web.rest import RestServer
from tidegate.web.rest_settings import RestSettings, Tls

Document = dict[str, Any]


def find_view(wanted: str, history: str | None = None) -> JobView:
    """By id, the beginning of an id, or name: a running job before one that has ended, a newer before an older run of
    the same name. Raises CommandError."""
    if not wanted:
        raise CommandError("the job's name or id is empty: see tidegate list")
    kept = History(history)
    jobs = AllJobs(kept)
    running = {r.job_id: r.job_name for r in running_jobs()}
    ids = [i for i, name in running.items() if i.startswith(wanted.lower()) or name == wanted]
    if not ids:
        ids = [i for i in kept.job_ids() if i.startswith(wanted.lower())]
    if not ids:
        ids = [job["job_id"] for job in jobs.summaries() if job["job_name"] == wanted][:1]
    if len(ids) > 1:
        raise CommandError(f"'{wanted}' may be any of several jobs: {', '.join(ids)}; give more of the id")
    if not ids:
        raise CommandError(
            f"no job '{wanted}' is running on {socket.gethostname()} for this user, and none is in the history: "
            "see tidegate list --all"
        )
    return jobs.view(ids[0])


def looking(document: Callable[[JobView], Document]) -> Callable[[Any], Document]:
    def look(arguments: Any) -> Document:
        view = find_view(arguments.job, arguments.history)
        return {"ended_ms": view.ended_ms, **document(view)}

    return look


show = looking(lambda view: documents.job(view, time.time() * 1000))
checkpoints = looking(documents.checkpoints)
exceptions = looking(documents.exceptions)
metrics = looking(
    lambda view: {
        "metrics": {
            name: number
            for full_name, m in (
                *((f"{m.vertex}.{m.subtask}.{m.name}", m) for m in view.metrics if not m.operator),
                *view.function_metrics(),
            )
            for name, number in numbers_of(full_name, m.value)
            if math.isfinite(number)  # JSON has no others
        }
    }
)


# ---------------------------------------------------------------- as text


def print_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(plain(text).ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def plain(text: str) -> str:
    """Names may hold anything: what would move the cursor or change the terminal is not printed."""
    return "".join(c if c.isprintable() else "?" for c in text)


def print_show(job: Document) -> None:
    print(f"{plain(job['job_name'])} ({job['job_id']})")
    print(f"{job['status']}, {job['mode']}, for {_seconds(job['duration_ms'])}, restarts: {job['attempt']}")
    print(f"in {per_second(job['records_in_per_second'])}, out {per_second(job['records_out_per_second'])}")
    what = "batches" if job["mode"] == "MICRO_BATCH" else "checkpoints"  # each is one there
    print(f"{what}: {job['checkpoints_completed']} completed, {job['checkpoints_failed']} failed")
    if job["warnings"]:
        print(f"warnings: {job['warnings']:,} lately (tidegate exceptions {job['job_id']})")
    print()
    rows = [("VERTEX", "NAME", "PARALLELISM", "RECORDS IN", "IN/S", "BUSY", "BACK-PRESSURED", "STATE BYTES")]
    for v in job["vertices"]:
        m = v["metrics"]
        shares = [m.get("busyTimeMsPerSecond"), m.get("backPressuredTimeMsPerSecond")]
        rows.append(
            (
                str(v["vertex"]),
                v["name"],
                str(v["parallelism"]),
                _number(m.get("numRecordsIn")),
                _number(m.get("numRecordsInPerSecond")),
                *("-" if share is None else f"{share / 10:.0f} %" for share in shares),
                _number(v["state_bytes"]),
            )
        )
    print_table(rows)
    for stage in job["stages"]:
        print(f"stage {stage['stage']}: {stage['completed']} of {stage['tasks']} tasks, {plain(stage['name'])}")


def print_checkpoints(answer: Document) -> None:
    print(", ".join(f"{count} {name.replace('_', ' ')}" for name, count in answer["counts"].items()), "\n")
    rows = [("ID", "KIND", "STATUS", "DURATION MS", "BYTES", "FULL BYTES", "ACKNOWLEDGED", "REASON")]
    for c in answer["checkpoints"][:20]:
        rows.append(
            (
                str(c["id"]),
                c["kind"],
                c["status"],
                _number(c["duration_ms"]),
                _number(c["state_bytes"]),
                _number(c["full_bytes"]),
                f"{c['acknowledged']} of {c['tasks']}",
                f"{c['reason']}: {c['detail']}" if c["reason"] else "",
            )
        )
    print_table(rows)


def print_exceptions(answer: Document) -> None:
    if not answer["failures"]:
        print("no failure so far")
    for failure in answer["failures"]:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(failure["at_ms"] / 1000))
        down = failure["downtime_ms"]
        caught_up = failure["catch_up_ms"]
        told = [f"attempt {failure['attempt']}", "" if down is None else f"down for {_seconds(down)}"]
        told += ["" if caught_up is None else f"caught up after {_seconds(caught_up)} more", plain(failure["verdict"])]
        print("  ".join(filter(None, [at, *told])))
        print("\n".join(plain(line) for line in [failure["summary"], *failure["traceback"].splitlines()]), "\n")
    for warning in answer["warnings"]:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(warning["latest_ms"] / 1000))
        often = "" if warning["times"] == 1 else f" ({warning['times']:,} times)"
        print(f"{at}  warning{often}: {plain(warning['text'])}")


def print_metrics(answer: Document) -> None:
    for name, number in sorted(answer["metrics"].items()):
        print(f"{plain(name)} = {number:.12g}")


def _number(number: float | None) -> str:
    return "-" if number is None else f"{number:,.0f}"


def per_second(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.1f}/s"


def _seconds(ms: float) -> str:
    return f"{ms / 1000:,.1f} s"


# ---------------------------------------------------------------- the page


def _listening(arguments: Any) -> RestSettings:
    tls = None
    if arguments.certificate or arguments.key:
        if not (arguments.certificate and arguments.key):
            raise CommandError("--certificate and --key go together: two files in PEM")
        tls = Tls(arguments.certificate, arguments.key)
    return RestSettings(arguments.bind_address, arguments.port, tls, arguments.address)


def ui(arguments: Any) -> Document:
    """Serves until it is interrupted."""
    history = History(arguments.history)
    history.job_ids()  # says now what is wrong with the folder
    server = RestServer(AllJobs(history), _listening(arguments))
    try:
        url = server.start()
    except OSError as error:
        raise CommandError(f"no port for the page can be opened: {error.strerror or error}") from error
    token = server.gate.read_token if arguments.read_only else server.token
    print(f"{url}/#token={token}", flush=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:  # the way to end it
        return {"url": url}
    finally:
        server.close()
    return {"url": url}
