"""The host of a JobMaster: its thread, its control port, its clock, its storage, and the Spark gangs it asks for."""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import zmq
from pyspark.sql import SparkSession

from tidegate.common.errors import SnapshotError
from tidegate.common.ids import AttemptNumber, CheckpointId
from tidegate.common.job_id import JobID
from tidegate.jobmanager.job_master import JobMaster
from tidegate.network.zmq_transport import JobKeys, authenticate
from tidegate.protocol.instructions import (
    CancelGang,
    CheckpointRequestDone,
    DeleteClaimed,
    DeleteOrphans,
    DeleteSavepoint,
    DeleteState,
    DeliverResults,
    Instruction,
    JobEnded,
    Log,
    Send,
    StatusChanged,
    SubmitGang,
    WriteMetadata,
)
from tidegate.protocol.messages import decode_from_slot, encode
from tidegate.spark.code_bundle import CodeBundle
from tidegate.spark.streaming.gang import SparkGang
from tidegate.spark.streaming.job_client import SparkJobClient
from tidegate.spark.streaming.job_control import ClientControl
from tidegate.spark.streaming.job_observer import JobObserver
from tidegate.spark.streaming.savepoint_requests import SavepointRequests
from tidegate.spark.streaming.waker import Waker
from tidegate.spark.streaming.worker import SlotLaunch
from tidegate.state.savepoint.format import write_savepoint_metadata
from tidegate.storage.checkpoint_storage import CheckpointStorage
from tidegate.storage.cleanup import Deletion
from tidegate.storage.filesystem import delete_claimed
from tidegate.taskmanager.clock import SystemClock
from tidegate.taskmanager.deployment import RuntimeSettings
from tidegate.web.job_port import JobPort

log = logging.getLogger("tidegate.jobmanager")

_MAX_WAIT_MS = 1000.0
_STORAGE_HEARTBEAT_MS = 10_000.0
_running: weakref.WeakSet[JobManager] = weakref.WeakSet()


@dataclass(frozen=True)
class RestSettings:
    host: str = "127.0.0.1"
    port: int = 0  # 0: any free one


class JobManager:
    """Runs one job. `start` returns at once; the client learns of the end."""

    def __init__(
        self,
        *,
        session: SparkSession,
        master: JobMaster,
        job_id: JobID,
        job_name: str,
        settings: RuntimeSettings,
        bundle: CodeBundle,
        storage: CheckpointStorage | None,
        savepoint_directory: str | None = None,
        rest: RestSettings | None = None,
    ) -> None:
        self._session = session
        self._master = master
        self._job_id = job_id
        self._job_name = job_name
        self._settings = settings
        self._bundle = bundle
        self._storage = storage
        self._clock = SystemClock()
        self._events: deque[Callable[[float], list[Instruction]]] = deque()
        self._waker = Waker()
        self._gangs: dict[AttemptNumber, SparkGang] = {}
        self._live_gangs = 0  # submitted, exit not yet reported
        self._keys = JobKeys.generate()
        self._ended: JobEnded | None = None
        self._thread = threading.Thread(target=self._run, name=f"tidegate-jobmanager-{job_id}", daemon=True)
        self._observer = JobObserver(master)
        self._savepoints = SavepointRequests(
            master, str(job_id), storage, savepoint_directory, self._post, lambda work: self._on_helper(work)
        )
        self.client = SparkJobClient(
            job_id,
            self._observer,
            self._savepoints,
            cancel=lambda: self._post(master.on_cancel),
            results_taken=lambda op, subtask, seq: self._post(
                lambda now: master.on_results_taken(op, subtask, seq, now)
            ),
        )

        self._port: JobPort | None = None
        if rest is not None:
            started = self._clock.now_ms()
            self._control = ClientControl(self.client, job_name, master.num_slots, started)
            self._port = JobPort(self._control, str(job_id), job_name, started, rest.host, rest.port)

    @property
    def master(self) -> JobMaster:
        return self._master

    def start(self) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._authenticator = authenticate(self._context, self._keys)
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.SNDHWM, 0)
        self._router.setsockopt(zmq.RCVHWM, 0)
        self._router.setsockopt(zmq.LINGER, 500)
        self._router.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._keys.secure_server(self._router)
        host = _driver_host(self._session)
        port = self._router.bind_to_random_port(f"tcp://{host}")
        self._address = f"tcp://{host}:{port}"
        # One thread: what is written and what is deleted keep their order.
        self._helper = ThreadPoolExecutor(1, thread_name_prefix="tidegate-metadata")
        _running.add(self)
        self._thread.start()
        if self._port is not None:
            self._port.open()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _post(self, event: Callable[[float], list[Instruction]]) -> None:
        """From any thread."""
        self._events.append(event)
        self._waker.wake()

    # ------------------------------------------------------------ the thread
    def _run(self) -> None:
        try:
            self._carry_out(self._master.start(self._clock.now_ms()))
            self._loop()
        except BaseException as error:
            log.exception("the JobManager of job %s failed", self._job_id)
            for gang in self._gangs.values():
                gang.cancel()
            self.client.broken(error)
        finally:
            self._helper.shutdown(wait=True)
            if self._storage is not None:
                with contextlib.suppress(Exception):
                    self._storage.close()
            self._router.close()
            self._authenticator.stop()
            self._context.destroy(linger=500)
            self._waker.close()
            self._savepoints.job_over(self._master.status.name)
            if self._port is not None:
                self._control.ended()
                self._port.close()
            if self._ended is not None:
                self.client.ended(self._ended)

    def _loop(self) -> None:
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._waker.fileno(), zmq.POLLIN)
        next_storage_heartbeat = self._clock.now_ms() + _STORAGE_HEARTBEAT_MS
        while self._ended is None:
            now = self._clock.now_ms()
            deadline = self._master.next_deadline()
            wait = _MAX_WAIT_MS if deadline is None else min(_MAX_WAIT_MS, max(0.0, deadline - now))
            if not self._events:
                for ready, _ in poller.poll(math.ceil(wait)):
                    if ready == self._waker.fileno():
                        self._waker.clear()
            self._receive()
            while self._events and self._ended is None:
                self._carry_out(self._events.popleft()(self._clock.now_ms()))
            now = self._clock.now_ms()
            deadline = self._master.next_deadline()
            if deadline is not None and deadline <= now:
                self._carry_out(self._master.on_tick(now))
            if self._storage is not None and now >= next_storage_heartbeat:
                next_storage_heartbeat = now + _STORAGE_HEARTBEAT_MS
                self._on_helper(partial(self._storage.heartbeat, now))

    def _receive(self) -> None:
        for _ in range(1000):
            try:
                _, payload = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._carry_out(self._master.on_message(decode_from_slot(payload), self._clock.now_ms()))

    def _carry_out(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Send(_, message, incarnation):
                    self._router.send_multipart((incarnation.encode(), encode(message)))
                case SubmitGang(attempt, slots):
                    self._observer.gang_submitted(attempt)
                    self._submit(attempt, slots)
                case CancelGang(attempt):
                    gang = self._gangs.get(attempt)
                    if gang is not None:
                        threading.Thread(target=gang.cancel, daemon=True).start()
                case WriteMetadata(attempt, metadata, target):
                    self._write_metadata(attempt, metadata, target)
                case DeleteSavepoint(target):
                    self._in_order(partial(_delete_savepoint, target))
                case DeleteState(files, directories):
                    self._in_order(partial(_delete, Deletion(list(files), list(directories))))
                case DeleteOrphans():
                    self._in_order(lambda s: s.delete_orphans())
                case DeleteClaimed(root, checkpoint_id):
                    self._in_order(partial(_delete_claimed, root, checkpoint_id, self._clock.now_ms()))
                case CheckpointRequestDone():
                    self._savepoints.done(instruction)
                case DeliverResults():
                    self.client.deliver(instruction)
                case StatusChanged(status):
                    self._observer.status_changed(status, self._clock.now_ms())
                    log.info("job %s (%s) is %s", self._job_name, self._job_id, status.name)
                case JobEnded():
                    self._ended = instruction
                case Log(level, text):
                    log.log(level, "job %s: %s", self._job_name, text)

    def _submit(self, attempt: AttemptNumber, slots: int) -> None:
        launch = SlotLaunch(
            control_address=self._address,
            keys=self._keys,
            attempt=attempt,
            heartbeat_interval_ms=self._settings.heartbeat_interval_ms,
            heartbeat_timeout_ms=self._settings.heartbeat_timeout_ms,
            leave_grace_ms=self._settings.leave_grace_ms,
            bundle=self._bundle,
        )
        gang = SparkGang(self._session, str(self._job_id), self._job_name, attempt)
        self._gangs = {attempt: gang}
        gang.submit(launch, slots, lambda error: self._post(lambda now: self._master.on_gang_exit(attempt, error, now)))

    def _write_metadata(self, attempt: AttemptNumber, metadata: Any, target: str) -> None:
        storage = self._storage
        assert storage is not None

        def write() -> None:
            error: str | None = None
            try:
                if target:
                    write_savepoint_metadata(storage.worker_storage().savepoint_files(target), metadata)
                else:
                    storage.write_metadata(metadata)
            except Exception as failure:
                error = f"{type(failure).__name__}: {failure}"
            n = metadata.checkpoint_id
            self._post(lambda now: self._master.on_metadata_written(attempt, n, error, now))

        self._on_helper(write)

    def _in_order(self, work: Callable[[CheckpointStorage], object]) -> None:
        """On the helper thread, behind everything that was asked for before."""
        if self._storage is not None:
            self._on_helper(partial(work, self._storage))

    def _on_helper(self, work: Callable[[], object]) -> None:
        try:
            self._helper.submit(work)
        except RuntimeError:  # the program is ending: Python starts nothing on other threads any more
            work()


def _delete(deletion: Deletion, storage: CheckpointStorage) -> None:
    for problem in storage.delete(deletion):
        log.warning("%s", problem)


def _delete_savepoint(target: str, storage: CheckpointStorage) -> None:
    try:
        storage.worker_storage().savepoint_files(target).delete_directory("")
    except SnapshotError as error:
        log.warning("what was written of a failed savepoint is left behind: %s", error)


def _delete_claimed(root: str, checkpoint_id: CheckpointId, now_ms: float, _: CheckpointStorage) -> None:
    for problem in delete_claimed(root, checkpoint_id, now_ms):
        log.warning("%s", problem)


def jobs_are_running() -> bool:
    """Whether this program runs a job right now."""
    return any(manager._ended is None and manager._thread.is_alive() for manager in list(_running))


def _driver_host(session: SparkSession) -> str:
    """Loopback when all workers are on this machine; otherwise where Spark's executors reach the driver."""
    if (session.sparkContext.master or "").startswith("local"):
        return "127.0.0.1"
    return str(session.sparkContext.getConf().get("spark.driver.host"))


@atexit.register
def _cancel_at_exit() -> None:
    """The program ends while jobs run: their JobManager ends with it, so do they."""
    for manager in list(_running):
        if manager._ended is None and manager._thread.is_alive():
            manager.client.cancel()
            manager.join(5)
