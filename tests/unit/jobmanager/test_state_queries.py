"""Looks at working state on their way to the slots: one message per slot at a time, bounded, and never forgotten."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tidegate.common.errors import StateNotReadableError
from tidegate.common.ids import OperatorId, SlotIndex, VertexId
from tidegate.common.job_status import JobStatus
from tidegate.jobmanager import state_queries
from tidegate.jobmanager.state_queries import StateQueries
from tidegate.protocol.instructions import StateReadDone
from tidegate.protocol.messages import StateLookup, StateProblem, StateResult

SLOT = SlotIndex(0)


def lookup(name: str) -> StateLookup:
    return StateLookup(vertex=VertexId(0), operator_id=OperatorId("o"), state=name, query=b"")


class FakeMaster:
    status = JobStatus.RUNNING

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, list[str]]] = []

    def on_read_state(self, request: int, slot: int, lookups: Any, now_ms: float) -> list[Any]:
        self.asked.append((request, slot, [one.state for one in lookups]))
        return []


class Asking:
    """Threads that ask, and a JobManager's thread that is driven by the test."""

    def __init__(self) -> None:
        self.master = FakeMaster()
        self.posted = threading.Semaphore(0)
        self.events: list[Callable[[float], Any]] = []
        self.queries = StateQueries(self.master, self._post)  # type: ignore[arg-type]
        self.results: dict[str, Any] = {}
        self.threads: list[threading.Thread] = []

    def _post(self, event: Callable[[float], Any]) -> None:
        self.events.append(event)
        self.posted.release()

    def ask(self, *names: str, slot: int = 0, timeout: float = 20.0) -> None:
        thread = threading.Thread(target=self._ask, args=(names, slot, timeout), daemon=True)
        thread.start()
        self.threads.append(thread)
        while not self._waits(names[-1]) or (self.queries._posted and not self.events):
            thread.join(0.001)

    def _waits(self, name: str) -> bool:
        return any(one.lookup.state == name for q in list(self.queries._waiting.values()) for one in q)

    @property
    def waiting(self) -> int:
        return self.queries._open

    def _ask(self, names: tuple[str, ...], slot: int, timeout: float) -> None:
        try:
            found = self.queries.ask([(SlotIndex(slot), lookup(name)) for name in names], timeout)
            self.results.update({name: result.detail for name, result in zip(names, found, strict=True)})
        except StateNotReadableError as error:
            self.results.update(dict.fromkeys(names, error))

    def turn(self, now: float = 0.0) -> None:
        for event in self.events:
            event(now)
        self.events.clear()
        self.queries.check_invariants()

    def answer(self, took_ms: float = 0.0, now: float = 0.0) -> None:
        request, _, names = self.master.asked[-1]
        results = tuple(StateResult(detail=f"of {name}") for name in names)
        self.queries.done(StateReadDone(request, results, took_ms), now)
        self.queries.check_invariants()

    def put_off(self, *names: str) -> None:
        request, _, asked = self.master.asked[-1]
        results = [
            StateResult(detail=f"of {name}", problem=StateProblem.PUT_OFF if name in names else None) for name in asked
        ]
        self.queries.done(StateReadDone(request, tuple(results), 0.0), 0.0)
        self.queries.check_invariants()

    def join(self) -> dict[str, Any]:
        for thread in self.threads:
            thread.join(20)
        assert not any(thread.is_alive() for thread in self.threads)
        assert self.waiting == 0
        return self.results


def test_a_slot_is_asked_one_thing_at_a_time_and_what_waits_goes_together() -> None:
    asking = Asking()
    asking.ask("a")
    asking.turn()
    asking.ask("b")
    asking.ask("c", "d")
    asking.ask("e", slot=1)
    asking.turn()
    assert [(slot, names) for _, slot, names in asking.master.asked] == [(0, ["a"]), (1, ["e"])]
    asking.answer()
    asking.queries.done(StateReadDone(asking.master.asked[0][0], (StateResult(detail="of a"),)), 0.0)
    assert asking.queries.next_deadline() == 0.0
    asking.queries.on_tick(0.0)
    assert asking.master.asked[-1][1:] == (0, ["b", "c", "d"])
    asking.answer()
    assert asking.join() == {name: f"of {name}" for name in "abcde"}


def test_a_costly_answer_gives_the_slot_a_rest() -> None:
    asking = Asking()
    asking.ask("a")
    asking.turn()
    asking.answer(took_ms=5.0, now=1000.0)
    asking.ask("b")
    asking.turn(1001.0)
    assert len(asking.master.asked) == 1
    assert asking.queries.next_deadline() == 1100.0
    asking.queries.on_tick(1100.0)
    asking.answer()
    assert asking.join() == {"a": "of a", "b": "of b"}


@pytest.mark.parametrize("sent", [True, False])
def test_when_the_attempt_ends_all_that_wait_are_told_to_try_again(sent: bool) -> None:
    asking = Asking()
    asking.ask("a")
    if sent:
        asking.turn()
    asking.queries.status_changed(JobStatus.FAILING)
    (error,) = asking.join().values()
    assert "it is FAILING" in str(error)
    assert error.retry_after_s > 0
    if sent:  # a late answer is no answer
        asking.answer()
    asking.turn()
    asking.queries.check_invariants()


def test_a_job_that_does_not_run_answers_at_once() -> None:
    asking = Asking()
    asking.master.status = JobStatus.RESTARTING
    asking.ask("a")
    asking.turn()
    asking.queries.done(StateReadDone(asking.master.asked[-1][0], None), 0.0)
    assert "it is RESTARTING" in str(asking.join()["a"])


def test_who_waits_too_long_gives_up_and_leaves_nothing_behind() -> None:
    asking = Asking()
    asking.ask("held")
    asking.turn()
    asking._ask(("late",), 0, 0.01)
    assert "within 0.01 s" in str(asking.results["late"])
    assert not asking.queries._waiting
    asking.answer()
    asking.join()


def test_open_questions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_queries, "MAX_OPEN", 3)
    asking = Asking()
    asking.ask("a", "b")
    asking._ask(("c", "d"), 0, 20.0)
    assert "of 3 at most" in str(asking.results["c"])
    asking.turn()
    asking.answer()
    assert asking.join()["b"] == "of b"


def test_nobody_is_asked_after_the_end() -> None:
    asking = Asking()
    asking.ask("a")
    asking.queries.job_over("FINISHED")
    asking._ask(("b",), 0, 20.0)
    results = asking.join()
    assert all("over (FINISHED)" in str(error) for error in results.values())


def test_what_a_slot_puts_off_is_asked_again_before_what_came_later() -> None:
    asking = Asking()
    asking.ask("a", "b", "c")
    asking.turn()
    asking.ask("d")
    asking.put_off("b", "c")
    asking.turn()
    assert [names for _, _, names in asking.master.asked] == [["a", "b", "c"], ["b", "c", "d"]]
    asking.answer()
    assert asking.join() == {name: f"of {name}" for name in "abcd"}


def test_what_is_put_off_and_nobody_waits_for_is_not_asked_again() -> None:
    asking = Asking()
    asking.ask("a", timeout=0.01)
    asking.turn()
    assert isinstance(asking.join()["a"], StateNotReadableError)
    asking.put_off("a")
    asking.turn()
    assert len(asking.master.asked) == 1
