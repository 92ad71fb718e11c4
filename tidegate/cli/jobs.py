"""The commands that talk to a running job: list, savepoint, stop, cancel."""

from __future__ import annotations

import socket
from typing import Any

from tidegate.cli.errors import CommandError
from tidegate.cli.look import per_second, plain, print_table
from tidegate.storage.location import absolute
from tidegate.web.all_jobs import AllJobs
from tidegate.web.history import History
from tidegate.web.registry import JobRecord, running_jobs
from tidegate.web.remote import call


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
    return {"jobs": AllJobs(History(arguments.history)).summaries(archived=arguments.all)}


def print_jobs(answer: dict[str, Any]) -> None:
    if not answer["jobs"]:
        print("no jobs are running")
        return
    rows = [("JOB ID", "NAME", "STATUS", "MODE", "PARALLELISM", "ATTEMPT", "FOR", "IN", "OUT", "LAST CHECKPOINT")]
    for job in answer["jobs"]:
        age = _age(job["duration_ms"]) if "duration_ms" in job else "?"
        last = job.get("last_checkpoint")
        rows.append(
            (
                job["job_id"],
                job["job_name"],
                job["status"],
                job.get("mode", "?"),
                str(job.get("parallelism", "?")),
                str(job.get("attempt", "?")),
                age,
                per_second(job.get("records_in_per_second")),
                per_second(job.get("records_out_per_second")),
                "-" if last is None else str(last),
            )
        )
    print_table(rows)
    for job in answer["jobs"]:
        if "error" in job:
            print(plain(job["error"]))


def _age(duration_ms: int) -> str:
    seconds = max(0, duration_ms // 1000)
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
        **call(job, "POST", "/savepoint", {"directory": _folder(arguments.directory)}),
    }


def stop(arguments: Any) -> dict[str, Any]:
    job = find(arguments.job)
    wanted = {"directory": _folder(arguments.savepoint_path), "drain": arguments.drain}
    return {"job_id": job.job_id, **call(job, "POST", "/stop", wanted)}


def cancel(arguments: Any) -> dict[str, Any]:
    job = find(arguments.job)
    answer = call(job, "POST", "/cancel", {})
    if answer.get("status") != "CANCELED":
        raise CommandError(f"job {job.job_id} ({job.job_name}) was not cancelled: it is {answer.get('status')}")
    return {"job_id": job.job_id, **answer}
