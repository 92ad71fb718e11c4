"""Every kind of window and trigger gives exactly what the reference model gives, for random out-of-order input, however
the window is evaluated, on any backend, with and without a failure in the middle."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.effort import EXAMPLES
from tests.unit.windows.kinds import COUNTED, EVENT_TIME, PROCESSING_TIME, STYLES, WITHOUT_MERGE, Kind
from tests.unit.windows.reference_model import by_window
from tests.unit.windows.script_job import (
    KEYS,
    ListSink,
    Mark,
    Record,
    Step,
    Wait,
    outcome_of,
    run_script,
    script_environment,
)
from tidegate.common import JobStatus
from tidegate.testing.in_process_job import InProcessJob

records = st.builds(Record, st.sampled_from("abc"), st.integers(0, 99), st.integers(-20, 70))
marks = st.builds(Mark, st.integers(-25, 75))
waits = st.builds(Wait, st.integers(1, 6).map(lambda n: 2 * n))
scripts = st.lists(st.one_of(records, records, records, marks, waits), max_size=40)

pytestmark = pytest.mark.filterwarnings("ignore:.*never emits anything")


def tried(backend: dict[str, Any], most: int) -> settings:
    """Up to so many examples on the heap, and a third in RocksDB, which costs ten times as much: windows do not know
    which of them they are on, and the contract of the backends has tests of its own. `make fuzz` tries more on both."""
    in_rocksdb = backend["state.backend.type"] == "rocksdb"
    return settings(max_examples=min(EXAMPLES, 200) or (most // 3 if in_rocksdb else most), deadline=None)


def named(kind: Kind) -> str:
    return kind.name


def numbered(steps: Sequence[Step]) -> list[Step]:
    """Values that tell records apart, and keep their remainder by 4, which is the gap of some sessions."""
    return [s._replace(value=4 * i + s.value % 4) if isinstance(s, Record) else s for i, s in enumerate(steps)]


def check(kind: Kind, steps: list[Step], style: str, **how: Any) -> int:
    outcome = run_script(steps, lambda stream: kind.windows(stream, style), with_late=True, rest_ms=kind.rest_ms, **how)
    compare(kind, steps, outcome.results, outcome.late)
    return outcome.restarts


def compare(kind: Kind, steps: list[Step], results: list[Any], late: list[Record]) -> None:
    expected = kind.expected(steps)
    assert by_window(results) == by_window(expected.results)
    plain = [r._replace(value=r.value[0]) if isinstance(r.value, tuple) else r for r in late]
    assert sorted(plain) == sorted(expected.late)


def styles_of(kind: Kind) -> list[str]:
    merging = "sessions" in kind.name
    return [style for style in STYLES if not (merging and style in WITHOUT_MERGE)]


@pytest.mark.parametrize("kind", EVENT_TIME + COUNTED + PROCESSING_TIME, ids=named)
def test_windows_give_what_the_model_gives(kind: Kind, backend: dict[str, Any]) -> None:
    @tried(backend, 24)
    @given(scripts.map(numbered), st.sampled_from(styles_of(kind)), st.sampled_from([1, 1, 2]))
    def give(steps: list[Step], style: str, parallelism: int) -> None:
        check(kind, steps, style, config=backend, parallelism=parallelism)

    give()


# Time passes after nearly every item, so that there are checkpoints between them; and event time moves on with them.
moving = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 99), st.integers(-12, 12), st.integers(0, 4)),
    min_size=8,
    max_size=25,
)


def with_waits(items: Sequence[tuple[str, int, int, int]]) -> list[Step]:
    steps: list[Step] = []
    for i, (key, value, jitter, luck) in enumerate(items):
        steps.append(Record(key, value, 2 * i + jitter))
        if luck == 0:
            steps.append(Mark(2 * i - 6))
        if luck < 4:
            steps.append(Wait(2))
    return numbered(steps)


def check_with_a_failure(
    kind: Kind, backend: dict[str, Any], steps: list[Step], data: st.DataObject, parallelism: int, every_ms: int
) -> None:
    restarts = check(
        kind,
        steps,
        data.draw(st.sampled_from(styles_of(kind))),
        config=backend,
        parallelism=parallelism,
        fail_after=data.draw(st.integers(1, sum(not isinstance(step, Wait) for step in steps) - 1)),
        checkpoint_every_ms=every_ms,
    )
    assert restarts == 1


# Watermarks are punctuated: they reach the windows between the same records again, and so early firings, late records
# and timers that were set for a time that is over have to be the same too.
@pytest.mark.parametrize("kind", EVENT_TIME + COUNTED, ids=named)
def test_a_failure_in_the_middle_changes_nothing(kind: Kind, backend: dict[str, Any]) -> None:
    @tried(backend, 15)
    @given(moving.map(with_waits), st.data(), st.sampled_from([1, 2]), st.integers(1, 4))
    def changes_nothing(steps: list[Step], data: st.DataObject, parallelism: int, every: int) -> None:
        check_with_a_failure(kind, backend, steps, data, parallelism, every)

    changes_nothing()


@pytest.mark.parametrize("kind", PROCESSING_TIME, ids=named)
def test_a_failure_in_the_middle_changes_nothing_by_the_clock(kind: Kind, backend: dict[str, Any]) -> None:
    """With a checkpoint between any two moments in which something comes, what is processed again is so at its time."""

    @tried(backend, 6)
    @given(moving.map(with_waits), st.data(), st.sampled_from([1, 2]))
    def changes_nothing(steps: list[Step], data: st.DataObject, parallelism: int) -> None:
        check_with_a_failure(kind, backend, steps, data, parallelism, 1)

    changes_nothing()


PARALLELISM = [(2, 3), (3, 1), (1, 2), (3, 2)]


@pytest.mark.parametrize("number", range(len(EVENT_TIME + COUNTED)), ids=lambda n: (EVENT_TIME + COUNTED)[n].name)
def test_windows_go_on_at_another_parallelism_and_on_the_other_backend(number: int, tmp_path: Path) -> None:
    kind, rng = (EVENT_TIME + COUNTED)[number], random.Random(number)
    luck = [("abcdefgh"[rng.randrange(8)], rng.randrange(99), rng.randint(-12, 12), i % 5) for i in range(60)]
    steps, style = with_waits(luck), rng.choice(styles_of(kind))
    moment = sum(step.ms for step in steps if isinstance(step, Wait)) * 0.6
    ListSink.written = []
    from_savepoint = {"execution.state-recovery.path": str(tmp_path / "savepoint")}
    for run, parallelism in enumerate(PARALLELISM[number % len(PARALLELISM)]):
        backend = ("hashmap", "rocksdb")[(number + run) % 2]
        keys = {**KEYS, "execution.checkpointing.interval": "1 h", "state.backend.type": backend}
        keys |= from_savepoint if run else {}
        env = script_environment(
            steps, partial(kind.windows, style=style), keys, parallelism, with_late=True, to_list=True
        )
        with InProcessJob(env) as job:
            if run == 0:
                job.advance(moment).stop(tmp_path / "savepoint")
            assert job.run_to_end() is JobStatus.FINISHED, job.failure
    outcome = outcome_of(ListSink.written, 0)
    compare(kind, steps, outcome.results, outcome.late)


def test_a_recovery_does_not_fire_what_waits_for_the_next_watermark(backend: dict[str, Any]) -> None:
    """The second record sets its early firing for -6, which is over: it fires with the next watermark, when the third
    record is there too, and not when the job is restored in between."""
    kind = next(k for k in EVENT_TIME if k.name == "continuous")
    steps = [Record("b", 2, 7), Mark(-6), Wait(2), Record("b", 14, -9), Wait(4), Record("b", 36, -1), Wait(2), Mark(6)]
    assert check(kind, steps, "process", config=backend, fail_after=3, checkpoint_every_ms=1) == 1
    early, at_the_end = by_window(kind.expected(steps).results)["b", (-20, 0)]
    assert early == at_the_end == [14, 36]
