"""The drivers of one in-process job, one after the other: killed, or stopped to be rescaled, until the job is over."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tidegate.chaos.recording import Recorded, RecordingSink, recorded
from tidegate.common import options
from tidegate.contracts.connectors import DeliveryGuarantee
from tidegate.datastream.interception import intercept
from tidegate.datastream.stream import DataStream
from tidegate.datastream.stream_execution_environment import StreamExecutionEnvironment
from tidegate.jobmanager.published_client import PublishedJobClient
from tidegate.jobmanager.runtime import Submission
from tidegate.protocol.instructions import DeleteState
from tidegate.storage.job_directory import METADATA_NAME, checkpoint_of_directory
from tidegate.storage.location import StorageLocation
from tidegate.testing.clock import ManualClock
from tidegate.testing.fault_plan import FaultPlan
from tidegate.testing.faults import Fault, KillDriver, Rescale
from tidegate.testing.in_process_job import InProcessJob

_MOST_MS = 60_000.0  # of a driver, on the clock of the job
_LOOK_MS = 50.0
_RESULTS = "results"


class KeptJob(InProcessJob):
    """Its checkpoints stay until somebody has looked at them."""

    def delete_state(self, instruction: DeleteState) -> None:
        """The folder goes as a whole."""


@dataclass(frozen=True)
class Start:
    """Of a driver: from which snapshot, at which parallelism; None: from the beginning, as the program has it."""

    path: str | None = None
    parallelism: int | None = None


class Drivers:
    """`run`, once. Then `last` is the driver with which the job came to its end, closed, and `started_from` the
    snapshot from which that had gone on."""

    last: InProcessJob
    started_from: str | None = None

    def __init__(self, build: Callable[[], DataStream], faults: list[Fault], folder: Path, order_by: str) -> None:
        self._build = build
        self.plan = FaultPlan(faults, ManualClock())
        self._folder = folder
        self._order_by = order_by

    def run(self, configured: Callable[[StreamExecutionEnvironment], None]) -> list[Recorded]:
        """What a sink in two phases has made visible. `configured` is called with the environment of each driver."""
        start: Start | None = Start()
        number = 0
        while start is not None:
            stream = self._build()
            recorder = RecordingSink(
                str(self._folder), _RESULTS, DeliveryGuarantee.EXACTLY_ONCE, self._order_by, segment=number
            )
            stream.sink_to(recorder)
            env = stream.get_execution_environment()
            configured(env)
            if start.path is not None:
                env._configuration.set(options.RECOVERY_PATH, start.path)
                env._configuration.set(options.RECOVERY_CLAIM_MODE, "NO_CLAIM")
            self.started_from = start.path
            with _at_parallelism(start.parallelism):
                self.last = driver = _Driver(env, self.plan, self._folder, number)
            with driver:
                start = driver.live(start)
            number += 1
        return list(recorded(str(self._folder), _RESULTS))


class _DriverKilled(Exception):
    """Takes the place of its death: nothing of it goes on."""


class _Driver(KeptJob):
    """One of them."""

    def __init__(self, env: StreamExecutionEnvironment, plan: FaultPlan, folder: Path, number: int) -> None:
        super().__init__(env, plan=plan)
        self._savepoints = folder / f"savepoints-{number}"
        self._rescale: Rescale | None = None  # the last one that was asked for
        self._asked = 0
        self._ask_at_ms = 0.0

    def live(self, start: Start) -> Start | None:
        """Until its end: how the next one starts; None: the job has ended too."""
        ends_ms = self.clock.now + _MOST_MS
        try:
            while self.ended is None:
                self.advance(_LOOK_MS)
                if self.clock.now > ends_ms:
                    raise AssertionError(f"the job has not ended within {_MOST_MS} ms: {self.master.status}")
        except _DriverKilled:
            newest = newest_checkpoint(Path(StorageLocation.parse(self.prepared.storage.root).local_path))
            return dataclasses.replace(start, path=newest or start.path)
        answer = self.answer(self._asked)
        if self._rescale is None or answer is None or answer.error is not None:
            return None  # the job has ended before
        self.faults.driver_struck(self._rescale)
        return Start(answer.target, self._rescale.parallelism)

    def _strike(self) -> bool:
        struck = super()._strike()
        fault = self.faults.driver_fault() if self._runs else None
        if isinstance(fault, KillDriver):
            self.faults.driver_struck(fault)
            raise _DriverKilled
        stopping = self._rescale is not None and self.answer(self._asked) is None
        if isinstance(fault, Rescale) and not stopping and self.clock.now >= self._ask_at_ms:
            self._rescale = fault
            self._asked += 1
            self._ask_at_ms = self.clock.now + _LOOK_MS  # again, should it fail
            self.stop(self._savepoints / str(self._asked), request_id=self._asked)
            return True
        return struck


def newest_checkpoint(folder: Path) -> str | None:
    """The newest complete one below this folder."""
    found = [(checkpoint_of_directory(file.parent.name) or 0, str(file.parent)) for file in folder.rglob(METADATA_NAME)]
    return max(found)[1] if found else None


class _Parallelism:
    """Interceptor: what has the highest parallelism gets this one."""

    def __init__(self, parallelism: int) -> None:
        self._parallelism = parallelism

    def submission(self, submission: Submission) -> Submission:
        graph = submission.graph
        highest = max((vertex.parallelism for vertex in graph.vertices), default=1)
        vertices = tuple(
            dataclasses.replace(
                vertex,
                parallelism=self._parallelism,
                max_parallelism=max(vertex.max_parallelism, self._parallelism),
            )
            if vertex.parallelism == highest
            else vertex
            for vertex in graph.vertices
        )
        return dataclasses.replace(submission, graph=dataclasses.replace(graph, vertices=vertices))

    def started(self, client: PublishedJobClient) -> None: ...


@contextmanager
def _at_parallelism(parallelism: int | None) -> Iterator[None]:
    if parallelism is not None:
        intercept(_Parallelism(parallelism))
    try:
        yield
    finally:
        if parallelism is not None:
            intercept(None)
