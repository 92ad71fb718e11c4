"""`tidegate state`: the keyed states of a running job, and what keys have in one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidegate.cli.jobs import find
from tidegate.cli.look import print_table
from tidegate.web.live_state import StateQuestion, path_of
from tidegate.web.remote import call


def add_command(commands: Any, command: Callable[..., Any]) -> None:
    parser = command(commands, "state", "the keyed states of a running job, or keys in one of them", state, print_state)
    parser.add_argument("job", help="id, beginning of the id, or name")
    parser.add_argument("operator", nargs="?", help="uid, name or id of an operator; otherwise all states are listed")
    parser.add_argument("state", nargs="?", help="name of its state; window-contents for that of windows")
    parser.add_argument("key", nargs="*", help="as JSON, or as text where keys are strings; otherwise some entries")
    parser.add_argument("--committed", action="store_true", help="as of the last completed checkpoint, instead of live")
    parser.add_argument("--window", default="", metavar="[START,END]", help="one window, of a state per window")
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="without keys: how many entries")


def state(arguments: Any) -> dict[str, Any]:
    job = find(arguments.job)
    if arguments.state is None:
        answer = call(job, "GET", "/state")
        chosen = [s for s in answer["states"] if arguments.operator in (None, s["operator"], s["operator_id"])]
        return {"job_id": job.job_id, "states": chosen}
    level = "committed" if arguments.committed else "live"
    question = StateQuestion(tuple(arguments.key), level, arguments.window, max(0, arguments.limit))
    return {"job_id": job.job_id, **call(job, "GET", path_of(arguments.operator, arguments.state, question))}


def print_state(answer: dict[str, Any]) -> None:
    if "states" in answer:
        _print_states(answer["states"])
        return
    if not answer["answers"]:
        print("there is nothing in it")
        return
    rows = [("KEY", "WINDOW", "VALUE", "TYPE", "AS OF")]
    for one in answer["answers"]:
        for window, part in _parts(one):
            value = part["text"] if one["found"] else "-"
            rows.append((one["key"]["text"], window, value, part.get("type", "-"), _as_of(one)))
    if all(row[1] == "" for row in rows[1:]):
        rows = [(row[0], *row[2:]) for row in rows]  # type: ignore[misc]
    print_table(rows)


def _parts(one: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    if "windows" in one:
        return [(part["window"]["text"], part) for part in one["windows"]]
    return [(one["window"]["text"] if "window" in one else "", one)]


def _as_of(one: dict[str, Any]) -> str:
    if one["checkpoint"] is not None:
        return f"checkpoint {one['checkpoint']}"
    return "now" if one["watermark"] is None else f"watermark {one['watermark']}"


def _print_states(states: list[dict[str, Any]]) -> None:
    rows = [("OPERATOR", "STATE", "KIND", "KEYS", "ENTRIES", "BYTES")]
    for s in states:
        kind = f"{s['kind']} per window" if s["per_window"] else s["kind"]
        keys = "hidden" if s["hidden"] else s["key_type"] or " or ".join(s["key_types"]) or "-"
        count = f"{s['entries']:,}" if s["exact"] else f"about {s['entries']:,}"
        rows.append((s["operator"], s["state"], kind, keys, count, f"about {s['bytes']:,}"))
    print_table(rows)
    if not states:
        print("no keyed state so far: what there is comes with the workers' heartbeats")
