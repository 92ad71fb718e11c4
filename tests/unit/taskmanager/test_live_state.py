"""The state of a running job, asked from outside: against a model while it runs, is killed and comes back at another
parallelism; every kind of state and window; every bad question. The job never notices."""

from __future__ import annotations

import random
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.taskmanager.small_jobs import Count, environment, ticks
from tidegate.common import Types, WatermarkStrategy
from tidegate.common.errors import (
    ConfigurationError,
    SnapshotDamagedError,
    StateHiddenError,
    StateNotReadableError,
    StateReadError,
    UnknownStateError,
    WrongKeyError,
)
from tidegate.common.time import Duration, Time
from tidegate.common.watermark_strategy import TimestampAssigner
from tidegate.datastream import AggregateFunction, KeyedProcessFunction, ProcessWindowFunction, RuntimeContext
from tidegate.datastream.connectors import CollectSink
from tidegate.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from tidegate.datastream.window import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TimeWindow,
    TumblingEventTimeWindows,
)
from tidegate.protocol.messages import StateProblem
from tidegate.storage.files import open_files
from tidegate.storage.location import StorageLocation
from tidegate.testing.in_process_job import InProcessJob

BACKENDS = pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
KEYS = 13
EVERY_MS = 7.0


def counting(
    tmp_path: Path, backend: str, parallelism: int, keys: dict[str, Any] | None = None, interval_ms: int = 100
) -> InProcessJob:
    settings = {
        "state.backend.type": backend,
        "execution.checkpointing.dir": str(tmp_path / "checkpoints"),
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": 100,
        "restart-strategy.fixed-delay.delay": "20 ms",
        **(keys or {}),
    }
    env = environment(settings, parallelism)
    env.enable_checkpointing(interval_ms)
    stream = ticks(env, burst=40, every_ms=EVERY_MS).key_by(lambda i: f"k{i % KEYS}", Types.STRING())
    stream.process(Count()).name("counting").uid("count").sink_to(CollectSink())
    return InProcessJob(env)


def counted(job: InProcessJob) -> Counter[str]:
    """What the functions themselves see in their state."""
    highest: Counter[str] = Counter()
    for slot in job.slots:
        for task in slot.runtime.tasks if slot.runtime is not None else ():
            for operator in task.chain.operators:
                if operator.node.uid == "count":
                    for key in operator.context.keyed.keys("count"):  # type: ignore[union-attr]
                        operator.context.keyed.current_key = key  # type: ignore[union-attr]
                        highest[key] = operator._process.__self__._count.value()  # type: ignore[attr-defined]
    return highest


@BACKENDS
def test_against_a_model_while_the_job_runs_is_killed_and_rescaled(tmp_path: Path, backend: str) -> None:
    rng = random.Random(12)
    names = [f"k{i}" for i in range(KEYS)]
    newest, committed = 0, Counter[str]()
    savepoint = None
    for parallelism in (2, 3, 1):
        settings = {} if savepoint is None else {"execution.state-recovery.path": str(savepoint)}
        with counting(tmp_path, backend, parallelism, settings) as job:
            job.run()
            for _ in range(12):
                job.advance(rng.randrange(5, 60))
                if rng.random() < 0.3:
                    job.kill_worker(rng.randrange(parallelism))
                    with pytest.raises(StateNotReadableError, match=r"RESTARTING|FAILING|CREATED"):
                        job.get_state("count", "count").get("k1")
                    job.advance(200)
                handle = job.get_state("count", "count")
                model = counted(job)
                live = handle.get_many([*names, "nobody"])
                assert {a.key: a.value for a in live if a.found} == dict(model)
                assert not live[-1].found
                assert {a.attempt for a in live} == {job.restarts}
                assert {a.key: a.value for a in handle.scan(100)} == dict(model)
                durable = handle.get_many(names, level="committed")
                (checkpoint,) = {a.checkpoint for a in durable}
                assert checkpoint >= newest, "a committed read has gone back"
                values = Counter({a.key: a.value for a in durable if a.found})
                assert all(values[name] >= committed[name] for name in names), "a committed read has gone back"
                assert checkpoint == (job.completed[-1] if job.completed else newest)
                assert all(values[name] <= model[name] for name in names)
                newest, committed = checkpoint, values
            savepoint = tmp_path / f"savepoint-{parallelism}"
            job.stop(savepoint).advance(500)
            assert job.answer() is not None
            newest = job.answer().checkpoint_id or 0  # type: ignore[union-attr]


@BACKENDS
def test_committed_reads_wait_when_the_job_falls_back_from_a_damaged_checkpoint(tmp_path: Path, backend: str) -> None:
    keys = {"state.checkpoints.num-retained": 3}
    with counting(tmp_path, backend, 1, keys, interval_ms=100_000) as job:
        job.advance(50).checkpoint().advance(50).checkpoint()
        handle = job.get_state("count", "count")
        assert handle.get("k1", level="committed").checkpoint == 2
        job.coordinator.store.mark_corrupt(job.coordinator.store.checkpoints[-1].checkpoint_id)
        with pytest.raises(StateNotReadableError, match="went back to checkpoint 1, since checkpoint 2"):
            handle.get("k1", level="committed")
        job.advance(50).checkpoint()
        assert handle.get("k1", level="committed").checkpoint == 3


def test_a_checkpoint_that_is_deleted_while_it_is_read_is_no_error(tmp_path: Path) -> None:
    with counting(tmp_path, "hashmap", 1) as job:
        job.advance(350)
        handle = job.get_state("count", "count")
        committed = job._states.committed
        before, sources = job.completed[-1], [committed._source]

        def deleted(root: str) -> Any:
            committed._source = sources[0]  # type: ignore[method-assign]
            job.advance(500)
            raise SnapshotDamagedError("the storage says that it is gone")

        committed._source = deleted  # type: ignore[method-assign]
        assert handle.get("k1", level="committed").checkpoint == job.completed[-1] > before


@BACKENDS
def test_a_storage_that_hangs_keeps_neither_others_who_look_nor_the_end_of_the_job(
    tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("tidegate.jobmanager.committed_state._PATIENCE_S", 0.01)
    reads, hangs, told = threading.Event(), threading.Event(), []
    with counting(tmp_path, backend, 1) as job:
        job.advance(350)
        handle = job.get_state("count", "count")
        assert handle.get("k1", level="committed").found
        job.advance(350)
        committed = job._states.committed
        source = committed._source

        def hanging(root: str) -> Any:
            reads.set()
            hangs.wait(60)
            return source(root)

        committed._source = hanging  # type: ignore[method-assign]
        looks = threading.Thread(target=lambda: told.append(handle.get("k1", level="committed")))
        looks.start()
        assert reads.wait(60)
        with pytest.raises(StateNotReadableError, match=r"another look .* the storage of the checkpoints is slow"):
            handle.get("k2", level="committed")
        closes = threading.Thread(target=committed.close, daemon=True)
        closes.start()
        closes.join(60)
        assert not closes.is_alive(), "the end of the job waits for a look at its state"
        hangs.set()
        looks.join(60)
        assert told[0].found
        with pytest.raises(StateReadError, match="the job is over"):
            handle.get("k1", level="committed")
    assert not list(tmp_path.glob("tidegate-committed-*"))


def test_nothing_is_committed_before_the_first_checkpoint(tmp_path: Path) -> None:
    with counting(tmp_path, "hashmap", 1) as job:
        job.run()
        with pytest.raises(StateNotReadableError, match="no checkpoint of this job is complete"):
            job.get_state("count", "count").get("k1", level="committed")


def test_a_checkpoint_in_the_jobmanagers_memory_can_be_read_too() -> None:
    env = environment({}, 2)
    env.enable_checkpointing(50)
    ticks(env, burst=40).key_by(lambda i: i % 5).process(Count()).uid("count").sink_to(CollectSink())
    with InProcessJob(env) as job:
        job.advance(120)
        assert job.get_state("count", "count").get(3, level="committed").value >= 8


# ---------------------------------------------------------------- every kind of state


class Mean(AggregateFunction):
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> float:
        if accumulator[1] > 1000:
            raise ZeroDivisionError("no mean today")
        return accumulator[0] / accumulator[1]

    def merge(self, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        return a[0] + b[0], a[1] + b[1]


class Everything(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.list = runtime_context.get_list_state(ListStateDescriptor("list", Types.LONG()))
        self.map = runtime_context.get_map_state(MapStateDescriptor("map", Types.LONG(), Types.STRING()))
        self.sum = runtime_context.get_reducing_state(ReducingStateDescriptor("sum", lambda a, b: a + b))
        self.mean = runtime_context.get_aggregating_state(AggregatingStateDescriptor("mean", Mean()))

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Any:
        self.list.add(value)
        self.map.put(value, f"v{value}")
        self.sum.add(value)
        self.mean.add(value)
        yield value


@BACKENDS
def test_every_kind_of_state(backend: str) -> None:
    env = environment({"state.backend.type": backend})
    env.enable_checkpointing(100_000)
    ticks(env, burst=9, every_ms=1e9).key_by(lambda i: (i % 2, "x")).process(Everything()).uid("all").sink_to(
        CollectSink()
    )
    numbers = [1, 3, 5, 7]
    expected = {"list": numbers, "map": {n: f"v{n}" for n in numbers}, "sum": 16, "mean": 4.0}
    with InProcessJob(env) as job:
        job.run()
        key = (1, "x")
        assert {name: job.get_state("all", name).get(key).value for name in expected} == expected
        job.checkpoint()
        committed = {name: job.get_state("all", name).get(key, level="committed").value for name in expected}
        assert committed == {**expected, "mean": (16, 4)}  # the accumulator: the snapshot has no get_result
        job.advance(3000)
        job._published.publish(job.clock.now)
        assert {view.state for view in job._states.listing()} == expected.keys()


class _Stamp(TimestampAssigner):
    def extract_timestamp(self, value: int, record_timestamp: int) -> int:
        return value * 10


def windowed(backend: str, windows: Any, aggregate: bool) -> InProcessJob:
    env = environment({"state.backend.type": backend})
    env.enable_checkpointing(100_000)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(0)).with_timestamp_assigner(_Stamp())
    stream = ticks(env, burst=25, every_ms=1e9).assign_timestamps_and_watermarks(strategy)
    stream = stream.key_by(lambda i: i % 2).window(windows)
    done = stream.aggregate(Mean()) if aggregate else stream.process(_Elements())
    done.uid("windows").sink_to(CollectSink())
    return InProcessJob(env)


class _Elements(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield key, list(elements)


@BACKENDS
@pytest.mark.parametrize("level", ["live", "committed"])
def test_the_contents_of_windows(backend: str, level: str) -> None:
    # Records 0 to 24 at 10 ms each: the watermark is 239, so only the window from 200 on is open.
    tumbling = TumblingEventTimeWindows.of(Time.milliseconds(200))
    with windowed(backend, tumbling, aggregate=True) as job:  # panes
        job.advance(300).checkpoint()
        handle = job.get_state("windows", "window-contents")
        answer = handle.get(1, level=level)
        assert answer.value == {TimeWindow(200, 400): (44, 2)}
        assert handle.get(1, level=level, window=(200, 400)).value == (44, 2)
        assert not handle.get(1, level=level, window=(0, 200)).found
        assert sorted((a.key, a.window, a.value) for a in handle.scan(level=level)) == [
            (0, (200, 400), (66, 3)),
            (1, (200, 400), (44, 2)),
        ]
        assert answer.watermark == (239 if level == "live" else None)
        assert answer.checkpoint == (1 if level == "committed" else None)
    with windowed(backend, tumbling, aggregate=False) as job:
        job.advance(300).checkpoint()
        handle = job.get_state("windows", "window-contents")
        assert handle.get(1, level=level).value == {TimeWindow(200, 400): [21, 23]}
        assert handle.get(1, level=level, window=TimeWindow(200, 400)).value == [21, 23]
    with windowed(backend, EventTimeSessionWindows.with_gap(Time.milliseconds(50)), aggregate=False) as job:
        job.advance(300).checkpoint()
        handle = job.get_state("windows", "window-contents")
        (window, elements), *more = handle.get(1, level=level).value.items()
        assert (window, elements, more) == (TimeWindow(10, 280), list(range(1, 25, 2)), [])
    with windowed(backend, SlidingEventTimeWindows.of(Time.milliseconds(200), Time.milliseconds(100)), True) as job:
        job.advance(300).checkpoint()
        slices = job.get_state("windows", "window-contents").get(1, level=level).value
        assert slices == {100: (75, 5), 200: (44, 2)}


@BACKENDS
def test_panes_are_read_as_the_operator_has_them_between_checkpoints(backend: str) -> None:
    with windowed(backend, TumblingEventTimeWindows.of(Time.milliseconds(200)), aggregate=True) as job:
        job.advance(300)
        assert job.get_state("windows", "window-contents").get(0).value == {TimeWindow(200, 400): (66, 3)}
        job.advance(3000)
        job.get_state("windows", "window-contents")
        (view,) = [view for view in job._states.listing() if view.per_window]
        assert (view.state, view.key_types) == ("_window/panes", ("int",))
        assert view.entries == 2 or not view.exact


# ---------------------------------------------------------------- bad questions


def test_bad_questions_say_what_is_wrong_and_the_job_goes_on(tmp_path: Path) -> None:
    with counting(tmp_path, "hashmap", 2) as job:
        job.advance(150)
        handle = job.get_state("count", "count")
        for level in ("live", "committed"):
            with pytest.raises(WrongKeyError, match="'count' of operator 'count' are String: 7"):
                handle.get(7, level=level)
            with pytest.raises(UnknownStateError, match=r"no keyed state 'sum'.*it has: 'count'"):
                job.get_state("count", "sum").get("k1", level=level)
        with pytest.raises(WrongKeyError, match="None is none"):
            handle.get(None)
        with pytest.raises(UnknownStateError, match=r"no operator 'total'.*it has: 'count'"):
            job.get_state("total", "count")
        with pytest.raises(UnknownStateError, match="no operator 'ticks'"):
            job.get_state("ticks", "count")
        with pytest.raises(ConfigurationError, match="'live' or 'committed', not 'yesterday'"):
            handle.get("k1", level="yesterday")
        with pytest.raises(ConfigurationError, match="at most 1,000 keys"):
            handle.get_many(map(str, range(1001)))
        for limit in (0, 1001):
            with pytest.raises(ConfigurationError, match="limit of 1 to 1,000"):
                handle.scan(limit)
        assert job.get_state("counting", "count").get("k1").found  # by its name
        job.slots[0].held = job.slots[1].held = True
        with pytest.raises(StateNotReadableError, match="has not answered within"):
            handle.get("k1", timeout=0.01)
        job.slots[0].held = job.slots[1].held = False
        job.advance(100)
        assert handle.get("k1").found
        assert job.restarts == 0


def test_a_key_of_an_undeclared_type_says_what_the_keys_are(tmp_path: Path) -> None:
    env = environment({}, 2)
    env.enable_checkpointing(50)
    ticks(env, burst=40).key_by(lambda i: i % 5).process(Count()).uid("count").sink_to(CollectSink())
    with InProcessJob(env) as job:
        job.advance(120)
        handle = job.get_state("count", "count")
        for level in ("live", "committed"):
            with pytest.raises(WrongKeyError, match="are int: there is no such key of type str"):
                handle.get("1", level=level)
        with pytest.raises(WrongKeyError, match="not hashable"):
            handle.get({"a": 1})


def test_what_a_function_of_the_user_raises_is_an_answer() -> None:
    env = environment({})
    ticks(env, burst=2500, every_ms=1e9).key_by(lambda i: 0).process(Everything()).uid("all").sink_to(CollectSink())
    with InProcessJob(env) as job:
        job.run()
        with pytest.raises(StateReadError, match=r"'mean' of operator 'all'.*ZeroDivisionError: no mean today"):
            job.get_state("all", "mean").get(0)
        assert job.get_state("all", "sum").get(0).value == sum(range(2500))
        assert job.restarts == 0


class Blob(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.list = runtime_context.get_list_state(ListStateDescriptor("list"))

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Any:
        self.list.add("x" * 100_000)
        yield value


@BACKENDS
def test_an_answer_costs_processor_time_and_that_of_the_clock_where_a_disk_is_read(
    tmp_path: Path, backend: str
) -> None:
    with counting(tmp_path, backend, 1) as job:
        job.advance(50)
        assert job.slots[0].runtime is not None
        reads, ticks_of = job.slots[0].runtime.state_reads, iter((100.0, 103.0))
        reads._spent_ms = lambda: next(ticks_of)
        _, took = reads.answer([job.get_state("count", "count")._lookup(["k1"], None, 0)])
        assert took == {"hashmap": 3.0, "rocksdb": 0.0}[backend]  # the clock of the job stands still


def test_a_slot_answers_only_as_much_of_a_message_as_takes_no_time(tmp_path: Path) -> None:
    with counting(tmp_path, "hashmap", 1) as job:
        job.advance(50)
        assert job.slots[0].runtime is not None
        reads = job.slots[0].runtime.state_reads
        lookups = [job.get_state("count", "count")._lookup([f"k{i}"], None, 0) for i in range(5)]
        spent = iter(range(0, 1000, 10))
        reads._spent_ms = lambda: float(next(spent))
        results, _ = reads.answer(lookups)
        assert [result.problem for result in results] == [*[None] * 3, *[StateProblem.PUT_OFF] * 2]
        reads._spent_ms = lambda: 0.0
        assert {result.problem for result in reads.answer(lookups)[0]} == {None}


def test_a_look_that_finds_the_budget_of_its_message_spent_is_put_off_and_answered_later() -> None:
    env = environment({})
    ticks(env, burst=30, every_ms=1e9).key_by(lambda i: i % 2).process(Blob()).uid("blob").sink_to(CollectSink())
    with InProcessJob(env) as job:
        job.run()
        handle = job.get_state("blob", "list")
        assert job.slots[0].runtime is not None
        one, both = handle._lookup([0], None, 0), handle._lookup([0, 1], None, 0)
        results, _ = job.slots[0].runtime.state_reads.answer([one, one, both, one, one, one, one])
        assert {result.problem for result in results} == {StateProblem.TOO_LARGE, StateProblem.PUT_OFF}
        assert results[0].problem is StateProblem.TOO_LARGE
        threads = [threading.Thread(target=_refused, args=(handle,), daemon=True) for _ in range(6)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            job.advance(10)
            threads[0].join(0.001)
        assert job.restarts == 0


def _refused(handle: Any) -> None:
    with pytest.raises(StateReadError, match="more than 1 MiB"):
        handle.get(0, timeout=60)


@BACKENDS
def test_a_look_at_a_checkpoint_reads_only_so_much_of_it(tmp_path: Path, backend: str) -> None:
    setting = "tidegate.queryable-state.committed.max-read"
    with counting(tmp_path, backend, 1, {setting: "100 bytes"}) as job:
        job.advance(150)
        handle = job.get_state("count", "count")
        with pytest.raises(StateReadError, match=rf"more than 100 bytes.*\({setting}\).*level live"):
            handle.get("k1", level="committed")
        with pytest.raises(StateReadError, match=setting):
            handle.scan(level="committed")
        assert handle.get("k1").found


def test_answers_are_bounded() -> None:
    env = environment({})
    ticks(env, burst=20, every_ms=1e9).key_by(lambda i: 0).process(Blob()).uid("blob").sink_to(CollectSink())
    with InProcessJob(env) as job:
        job.run()
        with pytest.raises(StateReadError, match="more than 1 MiB"):
            job.get_state("blob", "list").get(0)
        assert job.restarts == 0


# ---------------------------------------------------------------- who may look


def test_looking_can_be_switched_off(tmp_path: Path) -> None:
    with counting(tmp_path, "hashmap", 1, {"queryable-state.enable": False}) as job:
        job.advance(120)
        with pytest.raises(StateHiddenError, match=r"queryable-state.enable is false"):
            job.get_state("count", "count")
        job._published.publish(job.clock.now)
        assert all(view.hidden for view in job._states.listing())


@pytest.mark.parametrize("pattern", ["count/count", "counting/*", "*/c*nt"])
def test_a_state_can_be_hidden(tmp_path: Path, pattern: str) -> None:
    with counting(tmp_path, "hashmap", 1, {"tidegate.queryable-state.hidden": [pattern]}) as job:
        job.advance(3000)
        with pytest.raises(StateHiddenError, match=r"'count' of operator 'count' is hidden by tidegate"):
            job.get_state("count", "count")
        job._published.publish(job.clock.now)
        (view,) = job._states.listing()
        assert (view.hidden, view.key_types, view.entries) == (True, (), KEYS)


class Secretive(KeyedProcessFunction):
    """Hides one of its states, and lets another expire."""

    def open(self, runtime_context: RuntimeContext) -> None:
        card, visit = ValueStateDescriptor("card", Types.STRING()), ValueStateDescriptor("visit", Types.LONG())
        if self.hides:
            card.hide_from_queries()
        visit.enable_time_to_live(StateTtlConfig.new_builder(Time.seconds(10)).build())
        self.card, self.visit = runtime_context.get_state(card), runtime_context.get_state(visit)

    def __init__(self, hides: bool) -> None:
        self.hides = hides

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Any:
        self.card.update("4111-1111")
        self.visit.update(value)
        yield value


def secretive(backend: str, hides: bool, path: Path | None = None) -> InProcessJob:
    settings = {"state.backend.type": backend, **({"execution.state-recovery.path": str(path)} if path else {})}
    env = environment(settings, 2)
    env.enable_checkpointing(100_000)
    stream = ticks(env, burst=9, every_ms=1e9).key_by(lambda i: i % 3)
    stream.process(Secretive(hides)).uid("users").sink_to(CollectSink())
    return InProcessJob(env)


@BACKENDS
def test_a_state_can_be_hidden_by_its_descriptor(tmp_path: Path, backend: str) -> None:
    with secretive(backend, hides=False) as job:
        job.run()
        assert job.get_state("users", "card").get(1).value == "4111-1111"
        job.stop(tmp_path / "savepoint").advance(500)
    with secretive(backend, hides=True, path=tmp_path / "savepoint") as job:
        job.run()
        job.checkpoint()
        for level in ("live", "committed"):
            for ask in (lambda handle: handle.get(1, level=level), lambda handle: handle.scan(level=level)):  # noqa: B023
                with pytest.raises(StateHiddenError, match=r"'card' of operator 'users' is hidden: its descriptor has"):
                    ask(job.get_state("users", "card"))
            with pytest.raises(UnknownStateError, match=r"it has: 'visit'$"):
                job.get_state("users", "cart").get(1, level=level)
        # Also before a heartbeat has told that it is hidden.
        lookup = msgspec.structs.replace(job.get_state("users", "visit")._lookup([1], None, 0), state="card")
        with pytest.raises(StateHiddenError, match="its descriptor"):
            job._states.committed.get(lookup.operator_id, "card", [1], None)
        assert job.slots[0].runtime is not None
        (result,), _ = job.slots[0].runtime.state_reads.answer([lookup])
        assert (result.problem, result.answer) == (StateProblem.HIDDEN, b"")
        job.advance(3000)
        job._published.publish(job.clock.now)
        views = {view.state: view for view in job._states.listing()}
        assert (views["card"].hidden, views["card"].key_types) == (True, ())
        assert views["card"].entries > 0  # of RocksDB it is an estimate
        assert not views["visit"].hidden
        with pytest.raises(StateHiddenError, match="its descriptor"):
            job.get_state("users", "card")


@BACKENDS
def test_what_has_expired_is_not_shown_live_nor_committed(backend: str) -> None:
    with secretive(backend, hides=False) as job:
        job.run()
        job.checkpoint()
        handle = job.get_state("users", "visit")
        for level in ("live", "committed"):
            assert handle.get(1, level=level).found
            assert len(handle.scan(level=level)) == 3
        job.advance(10_001)
        for level in ("live", "committed"):
            assert not handle.get(1, level=level).found
            assert handle.scan(level=level) == []


def test_hidden_windows_are_hidden_under_each_of_their_names() -> None:
    env = environment({"tidegate.queryable-state.hidden": ["windows/window-contents"]})
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(_Stamp())
    stream = ticks(env, burst=5, every_ms=1e9).assign_timestamps_and_watermarks(strategy).key_by(lambda i: 0)
    stream.window(TumblingEventTimeWindows.of(Time.seconds(1))).aggregate(Mean()).uid("windows").sink_to(CollectSink())
    with InProcessJob(env) as job:
        job.run()
        for name in ("window-contents", "_window/panes"):
            with pytest.raises(StateHiddenError):
                job.get_state("windows", name)


def test_a_pattern_without_an_operator_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="'card' has to be operator/state"):
        counting(tmp_path, "hashmap", 1, {"tidegate.queryable-state.hidden": ["card"]})


def test_the_files_of_a_checkpoint_are_not_kept_open_or_behind(tmp_path: Path) -> None:
    before = {p.name for p in Path(tempfile.gettempdir()).glob("tidegate-committed-*")}
    with counting(tmp_path, "rocksdb", 1) as job:
        job.advance(150)
        job.get_state("count", "count").get("k1", level="committed")
        assert open_files(StorageLocation.parse(str(tmp_path))).names("")
    assert {p.name for p in Path(tempfile.gettempdir()).glob("tidegate-committed-*")} <= before
