"""The commands that talk to a running job: list, savepoint, stop, cancel."""

from __future__ import annotations

import http.client
import json
import socket
import time
from typing import Any
from urllib.parse import urlsplit

from tidegate.cli.errors import CommandError
from tidegate.common.errors import present
from tidegate.storage.location import absolute
from tidegate.web.registry import JobRecord, running_jobs

_CONNECT_TIMEOUT_S = 5.0


def call(job: JobRecord, method: str, path: str, arguments: dict[str, Any] | None = None) -> dict[str, Any]:
    """The JSON answer. Waits as long as the job takes."""
    parts = urlsplit(job.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_CONNECT_TIMEOUT_S)
    body = None if arguments is None else json.dumps(arguments)
    headers = {"Authorization": f"Bearer {job.token}", "Content-Type": "application/json"}
    try:
        connection.connect()
        present(connection.sock, "the socket of an open connection").settimeout(None)
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        answer = json.loads(response.read() or b"{}")
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = "it ended meanwhile" if isinstance(error, ConnectionError | http.client.HTTPException) else str(error)
        raise CommandError(f"job {job.job_id} ({job.job_name}) does not answer: {reason}") from error
    finally:
        connection.close()
    if response.status != 200:
        raise CommandError(f"job {job.job_id} ({job.job_name}): {answer.get('error', response.reason)}")
    return dict(answer)


def find(wanted: str) -> JobRecord:
    """Finds a job by its id, the beginning of its id, or its name."""
    if not wanted:
        raise CommandError("the job's name or id is empty: see tidegate list")
    jobs = running_jobs()
    exact = [j for j in jobs if j.job_id == wanted]
    found = exact or [j for j in jobs if j.job_id.startswith(wanted.lower()) or j.job_name == wanted]
    if len(found) == 1:
        return found[0]
    if found:
        several = ", ".join(f"{j.job_id} ({j.job_name})" for j in found)
        raise CommandError(f"'{wanted}' may be any of several jobs: {several}; give more of the id")
    there = ", ".join(f"{j.job_id} ({j.job_name})" for j in jobs) or "none"
    raise CommandError(
        f"no job '{wanted}' is running on {socket.gethostname()} for this user: it has ended, or it never was. "
        f"Running jobs: {there}"
    )


def list_jobs(arguments: Any) -> dict[str, Any]:
    jobs = []
    for record in running_jobs():
        try:
            jobs.append(call(record, "GET", f"/v1/jobs/{record.job_id}"))
        except CommandError as error:
            jobs.append({"job_id": record.job_id, "job_name": record.job_name, "status": "?", "error": str(error)})
    return {"jobs": jobs}


def print_jobs(answer: dict[str, Any]) -> None:
    if not answer["jobs"]:
        print("no jobs are running")
        return
    rows = [("JOB ID", "NAME", "STATUS", "PARALLELISM", "ATTEMPT", "RUNNING FOR", "LAST CHECKPOINT")]
    for job in answer["jobs"]:
        age = _age(job["started_ms"]) if "started_ms" in job else "?"
        last = job.get("last_checkpoint")
        rows.append(
            (
                job["job_id"],
                job["job_name"],
                job["status"],
                str(job.get("parallelism", "?")),
                str(job.get("attempt", "?")),
                age,
                "-" if last is None else str(last),
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def _age(started_ms: int) -> str:
    seconds = max(0, int(time.time() - started_ms / 1000))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds} s"


def _folder(given: str | None) -> str | None:
    """A relative path is meant from here, not from where the job was started."""
    return absolute(given) if given else None


def savepoint(arguments: Any) -> dict[str, Any]:
    job = find(arguments.job)
    return {
        "job_id": job.job_id,
        **call(job, "POST", f"/v1/jobs/{job.job_id}/savepoint", {"directory": _folder(arguments.directory)}),
    }


def stop(arguments: Any) -> dict[str, Any]:
    job = find(arguments.job)
    wanted = {"directory": _folder(arguments.savepoint_path), "drain": arguments.drain}
    return {"job_id": job.job_id, **call(job, "POST", f"/v1/jobs/{job.job_id}/stop", wanted)}


def cancel(arguments: Any) -> dict[str, Any]:
    job = find(arguments.job)
    answer = call(job, "POST", f"/v1/jobs/{job.job_id}/cancel", {})
    if answer.get("status") != "CANCELED":
        raise CommandError(f"job {job.job_id} ({job.job_name}) was not cancelled: it is {answer.get('status')}")
    return {"job_id": job.job_id, **answer}
