"""One function, or a few operators, driven record by record: state, timers, side outputs and recovery included.

Flink's Java users have operator harnesses; this is the same for functions in Python. The operators run in a real slot
of an in-process job, so what a test sees is what a job would do::

    with Harness(lambda events: events.key_by(lambda e: e.user).process(Sessions())) as harness:
        harness.process(event, timestamp=1_000)
        harness.watermark(61_000)                  # event-time timers fire
        assert harness.output() == [...]
        harness.restart()                          # as after a crash: from the last snapshot, or from nothing
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tidegate.common import options
from tidegate.common.configuration import Configuration
from tidegate.contracts.collect_sink import CollectSink
from tidegate.contracts.functions import ProcessFunction
from tidegate.contracts.output_tag import OutputTag
from tidegate.datastream.stream import DataStream
from tidegate.datastream.stream_execution_environment import StreamExecutionEnvironment
from tidegate.testing.in_process_job import InProcessJob
from tidegate.testing.inputs import Feed, Record, Watermark


class Harness:
    """Operators on one input. `build` takes the stream of what is fed and returns the stream of results.

    `side_outputs`: tags whose records `side_output` gives. `configuration`: keys as for a job, for instance the state
    backend. `restore`: a snapshot of an earlier harness, see `snapshot`.

    Checkpoints are taken only by `snapshot`; after a failure of the function the harness raises it."""

    _inputs = 1

    def __init__(
        self,
        build: Callable[..., DataStream],
        *,
        side_outputs: Sequence[OutputTag] = (),
        configuration: dict[str, Any] | None = None,
        restore: str | None = None,
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tidegate-harness-"))
        self._snapshots = 0
        self._feeds = [Feed() for _ in range(self._inputs)]
        self._taken: dict[str | None, int] = {}  # tag -> how many of its records were given out
        keys: dict[str, Any] = {
            options.RESTART_STRATEGY.key: "none",
            options.BUFFER_TIMEOUT.key: "0",
            options.AUTO_WATERMARK_INTERVAL.key: "0",
            **(configuration or {}),
        }
        if restore is not None:
            keys[options.RECOVERY_PATH.key] = restore
        self._build = build
        self._tags = tuple(side_outputs)
        self._keys = keys
        self._job = self._start()

    def _start(self) -> InProcessJob:
        env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(self._keys))
        streams = [feed.stream(env, f"input {i + 1}") for i, feed in enumerate(self._feeds)]
        results = self._build(*streams)
        if not isinstance(results, DataStream):
            raise TypeError(f"the harness needs a function that returns a DataStream, it returned {results!r}")
        _collect(results, None)
        for tag in self._tags:
            _collect(results.get_side_output(tag), tag.tag_id)
        job = InProcessJob(env)
        job.__enter__()
        return self._settled(job)

    # ------------------------------------------------------------ input
    def process(self, value: Any, timestamp: int | None = None) -> Harness:
        """Hand one record in and let everything settle."""
        return self._feed(0, Record(value, timestamp))

    def process_all(self, *values: Any) -> Harness:
        """Records without timestamps, in order."""
        return self._feed(0, *(Record(value) for value in values))

    def watermark(self, timestamp: int) -> Harness:
        """Event time has come to `timestamp` on every input."""
        for feed in self._feeds:
            feed.add(Watermark(timestamp))
        self._settled(self._job)
        return self

    def advance_time(self, ms: float) -> Harness:
        """The wall clock moves on: processing-time timers fire, TTL expires."""
        self._job.advance(ms)
        self._check(self._job)
        return self

    @property
    def now_ms(self) -> int:
        """The wall clock, as the function sees it."""
        return int(self._job.clock.now_ms())

    def end_of_input(self) -> Harness:
        """Bounded input is over: event time comes to its end, and the job ends."""
        for feed in self._feeds:
            feed.end()
        self._job.run_to_end()
        self._check(self._job)
        return self

    # ------------------------------------------------------------ output
    def output(self) -> list[Any]:
        """The results since the last call."""
        return [record.value for record in self.records()]

    def records(self) -> list[Record]:
        """The results since the last call, with their timestamps."""
        return self._take(None)

    def side_output(self, tag: OutputTag) -> list[Any]:
        """What went to a side output since the last call."""
        if tag not in self._tags:
            raise ValueError(f"side output '{tag.tag_id}' is not read: name it in Harness(..., side_outputs=[...])")
        return [record.value for record in self._take(tag.tag_id)]

    # ------------------------------------------------------------ recovery
    def snapshot(self) -> str:
        """Take a savepoint of the operators; `Harness(..., restore=...)` and `restart` begin with it. It is deleted
        when this harness is closed."""
        self._snapshots += 1
        target = str(self._folder / f"savepoint-{self._snapshots}")
        self._job.savepoint(target, self._snapshots)
        self._settled(self._job)
        answer = self._job.answer(self._snapshots)
        if answer is None or answer.error is not None:
            raise RuntimeError(f"the snapshot failed: {'no answer' if answer is None else answer.error}")
        self._keys[options.RECOVERY_PATH.key] = target
        return target

    def restart(self) -> Harness:
        """As after a crash: the function is made anew and goes on from the last snapshot, from nothing when there is
        none; what was fed since then is processed again."""
        self._job.__exit__()
        self._taken = {}
        self._job = self._start()
        return self

    def close(self) -> None:
        self._job.__exit__()
        for feed in self._feeds:
            feed.forget()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Harness:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # ------------------------------------------------------------ helpers
    def _feed(self, index: int, *steps: Record | Watermark) -> Harness:
        self._feeds[index].add(*steps)
        self._settled(self._job)
        return self

    def _settled(self, job: InProcessJob) -> InProcessJob:
        job.advance(21.0)  # a source that has found nothing looks again after that
        self._check(job)
        return job

    def _check(self, job: InProcessJob) -> None:
        if job.error is not None:
            raise job.error

    def _take(self, tag: str | None) -> list[Record]:
        found = [Record(value, stamp) for at, value, stamp in self._job.results if at == tag]
        start = self._taken.get(tag, 0)
        self._taken[tag] = len(found)
        return found[start:]


class TwoInputHarness(Harness):
    """Operators on two inputs: `build` takes two streams. `process` feeds the first, `process_second` the second."""

    _inputs = 2

    def process_second(self, value: Any, timestamp: int | None = None) -> Harness:
        return self._feed(1, Record(value, timestamp))


def _collect(stream: DataStream, tag: str | None) -> None:
    stream.process(_Stamped(tag)).set_parallelism(1).sink_to(CollectSink()).set_parallelism(1)


class _Stamped(ProcessFunction):
    def __init__(self, tag: str | None) -> None:
        self._tag = tag

    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterator[Any]:
        yield self._tag, value, ctx.timestamp()
