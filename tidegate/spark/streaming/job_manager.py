"""The host of a JobMaster: its thread, its control port, its clock, its storage, and the Spark gangs it asks for."""

from __future__ import annotations

import dataclasses
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import zmq
from pyspark.sql import SparkSession

from tidegate.common.file_limits import raise_file_limit
from tidegate.common.ids import AttemptNumber
from tidegate.common.job_id import JobID
from tidegate.common.job_status import JobStatus
from tidegate.jobmanager.carrier import InstructionCarrier
from tidegate.jobmanager.committed_state import CommittedState
from tidegate.jobmanager.discovery_work import DiscoveryWork
from tidegate.jobmanager.job_master import JobMaster
from tidegate.jobmanager.job_publisher import JobPublisher, MasterPublisher
from tidegate.jobmanager.leadership.fence import without_effect
from tidegate.jobmanager.leadership.job_record import SnapshotPointer
from tidegate.jobmanager.leadership.record_claim import CheckpointCompleted, SavepointCompleted
from tidegate.jobmanager.live_state import LiveStates
from tidegate.jobmanager.preparation import PreparedJob
from tidegate.jobmanager.running_jobs import add_running_job
from tidegate.jobmanager.state_queries import StateQueries
from tidegate.jobmanager.storage_work import StorageWork
from tidegate.network.door import Door
from tidegate.network.zmq_transport import JobKeys, authenticate, new_context
from tidegate.protocol.codec import OtherVersionError, ProtocolError, decode_from_slot, encode
from tidegate.protocol.instructions import (
    CancelGang,
    CheckpointRequestDone,
    DeleteClaimed,
    DeleteOrphans,
    DeleteSavepoint,
    DeleteState,
    DeliverResults,
    DiscoverSplits,
    Instruction,
    JobEnded,
    Log,
    Recording,
    RecordSnapshot,
    Send,
    StateReadDone,
    StatusChanged,
    SubmitGang,
    WriteMetadata,
)
from tidegate.protocol.messages import Deploy, MasterHeartbeat
from tidegate.spark.code_bundle import CodeBundle
from tidegate.spark.slot_wait import SlotWait
from tidegate.spark.streaming.gang import SparkGang
from tidegate.spark.streaming.job_client import SparkJobClient
from tidegate.spark.streaming.lost_workers import name_lost
from tidegate.spark.streaming.printing import PRINTED, DriverPrinter
from tidegate.spark.streaming.savepoint_requests import SavepointRequests
from tidegate.spark.streaming.waker import Waker
from tidegate.spark.streaming.worker import SlotLaunch
from tidegate.spark.worker_logs import WorkerLogs
from tidegate.storage.filesystem import FileSystemStorage
from tidegate.taskmanager.clock import SystemClock
from tidegate.web.history import History
from tidegate.web.job_control import ClientPort
from tidegate.web.otel import OtelSettings
from tidegate.web.rest_settings import RestSettings

log = logging.getLogger("tidegate.jobmanager")

_MAX_WAIT_MS = 1000.0


class JobManager(InstructionCarrier):
    """Runs one job. `start` returns at once; the client learns of the end."""

    def __init__(
        self,
        *,
        session: SparkSession,
        job: PreparedJob,
        bundle: CodeBundle,
        savepoint_directory: str | None = None,
        rest: RestSettings | None = None,
        prints: bool = False,
        logs: WorkerLogs | None = None,
    ) -> None:
        """`prints`: what print sinks write goes to the standard streams of this program."""
        self._session = session
        self._master = master = job.master
        self._job_id = job_id = JobID.from_hex(job.graph.job_id)
        self._graph = job.graph
        self._job_name = job.graph.name
        self._settings = job.settings
        self._bundle = bundle
        self._storage = job.storage
        self._discovery = DiscoveryWork(job.graph)
        self._leadership = job.leadership
        self._deposed = False  # nothing that has an effect is done any more
        self._stepped_down = False  # and the JobMaster knows
        self._clock = SystemClock()
        self._events: deque[Callable[[float], list[Instruction]]] = deque()
        self._waker = Waker()
        self._gangs: dict[AttemptNumber, SparkGang] = {}
        self._gang_began = 0.0  # the latest
        self._slot_wait: SlotWait | None = None  # of the latest gang
        self._keys = JobKeys.generate()
        self._prints = prints
        self._logs = logs
        self._printer = DriverPrinter(
            lambda sender, count: self._post(lambda now: self._acknowledge_printed(sender, count))
        )
        self._ended: JobEnded | None = None
        self._thread = threading.Thread(target=self._run, name=f"tidegate-jobmanager-{job_id}", daemon=True)
        publisher = JobPublisher(job.graph, "STREAMING", job.graph.num_slots, self._clock.now_ms(), job.configuration)
        self._published = MasterPublisher(publisher, job.graph, master)
        self._savepoints = SavepointRequests(
            master,
            str(job_id),
            job.storage,
            savepoint_directory,
            self._post,
            lambda work: self._storage_work.look("looking for a place for a savepoint", work),
        )
        workers_storage = job.storage.worker_storage()
        self._queries = StateQueries(master, self._post)
        self._committed = CommittedState(
            lambda: publisher.committed,
            workers_storage.source,
            self._clock.now_ms,
            publisher.queries.committed_max_read,
            job.shown,
        )
        self.client = SparkJobClient(
            publisher,
            self._savepoints,
            cancel=self.cancel,
            results_taken=lambda op, subtask, seq: self._post(
                lambda now: master.on_results_taken(op, subtask, seq, now)
            ),
            states=LiveStates(job.graph, publisher, self._queries, self._committed),
        )

        configured = job.configuration
        history, otel = History.from_configuration(configured), OtelSettings.from_configuration(configured)
        beside = job.storage.files() if isinstance(job.storage, FileSystemStorage) else None
        self._port = ClientPort(self.client, rest, history, otel, beside)

    @property
    def master(self) -> JobMaster:
        return self._master

    def start(self) -> None:
        raise_file_limit()
        self._context: zmq.Context[Any] = new_context()
        self._authenticator = authenticate(self._context, self._keys)
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.SNDHWM, 0)
        self._router.setsockopt(zmq.RCVHWM, 0)
        self._router.setsockopt(zmq.LINGER, 500)
        self._router.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._keys.secure_server(self._router)
        self._door = Door(self._router, f"the control port of job '{self._job_name}'")
        self._door.expect(2 * self._master.num_slots)  # of an attempt that leaves, and of the next one
        host = _driver_host(self._session)
        port = self._router.bind_to_random_port(f"tcp://{host}")
        self._address = f"tcp://{host}:{port}"
        self._storage_work = StorageWork(self._storage, taken=self._directory_taken)
        add_running_job(self)
        self._port.open()  # before the thread, which closes it
        self._thread.start()

    # ------------------------------------------------------------ RunningJob
    @property
    def label(self) -> str:
        slots = self._master.num_slots
        return f"job '{self._job_name}' ({self._job_id}, {slots} {'slot' if slots == 1 else 'slots'})"

    @property
    def spark_groups(self) -> tuple[str, ...]:
        return tuple(gang.group for gang in list(self._gangs.values()))

    @property
    def has_workers(self) -> bool:
        return bool(self._master.members)

    @property
    def running(self) -> bool:
        return self._ended is None and self._thread.is_alive()

    def cancel(self) -> None:
        self._post(self._master.on_cancel)

    def program_ends(self) -> None:
        """With high availability the job is not over: the lease is given back, and nothing is recorded."""
        if self._leadership is None:
            self.cancel()
        else:
            self._post(self._on_program_ends)

    def _on_program_ends(self, now_ms: float) -> list[Instruction]:
        self._deposed = self._stepped_down = True
        reason = "its program has ended, and has given its lease back: the job goes on under another driver"
        log.warning("job %s: %s", self._job_name, reason)
        return self._master.on_deposed(reason, now_ms)

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _post(self, event: Callable[[float], list[Instruction]]) -> None:
        """From any thread."""
        self._events.append(event)
        self._waker.wake()

    # ------------------------------------------------------------ high availability
    def _leads(self) -> bool:
        """Whether what has an effect may be done now. Once it may not, it never may again."""
        self._deposed = self._deposed or (self._leadership is not None and not self._leadership.leads())
        return not self._deposed

    def _step_down_if_deposed(self) -> None:
        if self._stepped_down or self._leads() or self._leadership is None:
            return
        self._stepped_down = True
        reason = self._leadership.why_not()
        log.error("job %s: %s", self._job_name, reason)
        self.carry_out(self._master.on_deposed(reason, self._clock.now_ms()))

    def _with_recorded_end(self, instructions: Sequence[Instruction]) -> list[Instruction]:
        """The end of the job goes into the record before anything of it is deleted; when it cannot be put there, the
        job has not ended. A job that only has nothing to run on here goes on elsewhere."""
        return [self._recorded(i) if isinstance(i, JobEnded) else i for i in instructions]

    def _recorded(self, ended: JobEnded) -> JobEnded:
        leadership = self._leadership
        if leadership is None or not ended.status.is_globally_terminal_state() or ended.engine_gone:
            return ended
        reason = ended.failures[-1].failure.summary if ended.status is JobStatus.FAILED and ended.failures else ""
        if self._leads() and leadership.put_end(ended.status, reason) is Recording.WRITTEN:
            return ended
        self._deposed = True
        return dataclasses.replace(ended, status=JobStatus.SUSPENDED, reason=leadership.why_not())

    def record_snapshot(self, instruction: RecordSnapshot) -> None:
        assert self._leadership is not None
        n = instruction.checkpoint_id
        pointer = SnapshotPointer(checkpoint_id=n, path=instruction.path, epoch=self._leadership.epoch)
        change = (
            SavepointCompleted(pointer, instruction.stop)
            if instruction.savepoint
            else CheckpointCompleted(pointer, instruction.num_retained, instruction.refused)
        )

        def done(outcome: Recording) -> None:
            if outcome is Recording.DEPOSED:
                self._waker.wake()  # the loop steps down
            else:
                self._post(lambda now: self._master.on_recorded(n, outcome is Recording.WRITTEN, now))

        self._leadership.put(change, done)

    # ------------------------------------------------------------ the thread
    def _run(self) -> None:
        try:
            self.carry_out(self._master.start(self._clock.now_ms()))
            self._loop()
        except BaseException as error:
            log.exception("the JobManager of job %s failed", self._job_id)
            for gang in self._gangs.values():
                gang.cancel()
            self.client.broken(error)
        finally:
            self._printer.close()
            self._storage_work.close()
            self._discovery.close()
            if self._leadership is not None:
                self._leadership.close()
            self._door.close(self._router)
            self._router.close()
            self._authenticator.stop()
            self._context.destroy(linger=500)
            self._waker.close()
            self._savepoints.job_over(self._master.status.name)
            self._queries.job_over(self._master.status.name)
            self._committed.close()
            # The history of a job is for the leader that ends it: this one's view would take its place.
            self._port.close(keep=not self._deposed)
            if self._ended is not None:
                self.client.ended(self._ended)

    def _loop(self) -> None:
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._waker.fileno(), zmq.POLLIN)
        while self._ended is None:
            self._step_down_if_deposed()
            now = self._clock.now_ms()
            deadlines = (self._master.next_deadline(), self._published.next_deadline(), self._queries.next_deadline())
            due = [deadline for deadline in deadlines if deadline is not None]
            wait = min([_MAX_WAIT_MS, *[max(0.0, deadline - now) for deadline in due]])
            if self._leadership is not None and not self._deposed:
                wait = min(wait, self._leadership.valid_ms())
            if not self._events:
                for ready, _ in poller.poll(math.ceil(wait)):
                    if ready == self._waker.fileno():
                        self._waker.clear()
            self._receive()
            while self._events and self._ended is None:
                self.carry_out(self._events.popleft()(self._clock.now_ms()))
            now = self._clock.now_ms()
            deadline = self._master.next_deadline()
            if deadline is not None and deadline <= now:
                self.carry_out(self._master.on_tick(now))
            asking = self._queries.next_deadline()
            if asking is not None and asking <= now:
                self.carry_out(self._queries.on_tick(now))
            self._published.publish_if_due(now)
            self._storage_work.watch()
            if self._slot_wait is not None:
                self._slot_wait.look(bool(self._master.members), now)

    def _receive(self) -> None:
        for _ in range(1000):
            try:
                sender, *parts = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self.carry_out(self._on_parts(sender, parts))

    def _on_parts(self, sender: bytes, parts: list[bytes]) -> list[Instruction]:
        """Whatever a worker has sent: nothing of it may end this thread."""
        now = self._clock.now_ms()
        try:
            if len(parts) == 2 and parts[0] == PRINTED:
                self._printer.take(sender, parts[1])
                return []
            if len(parts) != 1:
                raise ProtocolError(f"a control message came in {len(parts)} parts")
            message = decode_from_slot(parts[0])
        except ProtocolError as error:
            incarnation = sender.decode(errors="backslashreplace")
            return self._master.on_unreadable(incarnation, str(error), isinstance(error, OtherVersionError), now)
        return self._master.on_message(message, now)

    def _acknowledge_printed(self, sender: bytes, count: bytes) -> list[Instruction]:
        self._router.send_multipart((sender, PRINTED, count))
        return []

    def carry_out(self, instructions: Sequence[Instruction]) -> None:
        instructions = self._with_recorded_end(instructions)
        self._published.after_step(instructions, self._clock.now_ms())
        if self._leadership is None:
            super().carry_out(instructions)
            return
        for instruction in instructions:
            if self._leads() or without_effect(instruction):
                super().carry_out((instruction,))

    # ------------------------------------------------------------ instructions of the JobMaster
    def send(self, instruction: Send) -> None:
        message = instruction.message
        if self._leadership is not None and isinstance(message, MasterHeartbeat | Deploy):
            message = msgspec.structs.replace(message, valid_ms=self._leadership.valid_ms())
        self._router.send_multipart((instruction.incarnation.encode(), encode(message)))

    def submit_gang(self, instruction: SubmitGang) -> None:
        attempt = instruction.attempt
        launch = SlotLaunch(
            control_address=self._address,
            keys=self._keys,
            attempt=attempt,
            heartbeat_interval_ms=self._settings.heartbeat_interval_ms,
            heartbeat_timeout_ms=self._settings.heartbeat_timeout_ms,
            leave_grace_ms=self._settings.leave_grace_ms,
            bundle=self._bundle,
            epoch=0 if self._leadership is None else self._leadership.epoch,
            lease_ms=None if self._leadership is None else self._leadership.lease_ms,
            prints_on_driver=self._prints,
            logs=self._logs,
        )
        gang = SparkGang(self._session, str(self._job_id), self._job_name, attempt, self._port.address)
        self._gangs = {attempt: gang}
        self._gang_began = time.time()
        self._slot_wait = SlotWait(self, gang, self._clock.now_ms())
        gang.submit(
            launch,
            instruction.num_slots,
            lambda error: self._post(lambda now: self._on_gang_exit(attempt, error, now)),
            lambda error: self._post(lambda now: self._master.on_engine_gone(attempt, error, now)),
        )

    def _on_gang_exit(self, attempt: AttemptNumber, error: str | None, now_ms: float) -> list[Instruction]:
        named = name_lost(error, self._master.members, self._graph, self._gang_began)
        return self._master.on_gang_exit(attempt, named, now_ms)

    def cancel_gang(self, instruction: CancelGang) -> None:
        gang = self._gangs.get(instruction.attempt)
        if gang is not None:
            threading.Thread(target=gang.cancel, daemon=True).start()

    def write_metadata(self, instruction: WriteMetadata) -> None:
        attempt, n = instruction.attempt, instruction.metadata.checkpoint_id
        self._storage_work.write_metadata(
            instruction,
            lambda error: self._post(lambda now: self._master.on_metadata_written(attempt, n, error, now)),
        )

    def _directory_taken(self, why: str) -> None:
        if self._leadership is None:
            self._post(lambda now: self._master.on_directory_taken(why, now))

    def delete_savepoint(self, instruction: DeleteSavepoint) -> None:
        self._storage_work.delete_savepoint(instruction)

    def delete_state(self, instruction: DeleteState) -> None:
        self._storage_work.delete_state(instruction)

    def delete_orphans(self, instruction: DeleteOrphans) -> None:
        self._storage_work.delete_orphans()

    def delete_claimed(self, instruction: DeleteClaimed) -> None:
        self._storage_work.delete_claimed(instruction, self._clock.now_ms())

    def request_done(self, instruction: CheckpointRequestDone) -> None:
        self._savepoints.done(instruction)

    def deliver_results(self, instruction: DeliverResults) -> None:
        self.client.deliver(instruction)

    def discover_splits(self, instruction: DiscoverSplits) -> None:
        attempt, operator_id = instruction.attempt, instruction.operator_id
        self._discovery.discover(
            instruction,
            lambda found: self._post(lambda now: self._master.on_splits_discovered(attempt, operator_id, found, now)),
        )

    def state_read_done(self, instruction: StateReadDone) -> None:
        self._queries.done(instruction, self._clock.now_ms())

    def status_changed(self, instruction: StatusChanged) -> None:
        self._queries.status_changed(instruction.status)
        log.info("job %s (%s) is %s", self._job_name, self._job_id, instruction.status.name)

    def job_ended(self, instruction: JobEnded) -> None:
        self._ended = instruction

    def log(self, instruction: Log) -> None:
        log.log(instruction.level, "job %s: %s", self._job_name, instruction.text)


def _driver_host(session: SparkSession) -> str:
    """Loopback when all workers are on this machine; otherwise where Spark's executors reach the driver."""
    if (session.sparkContext.master or "").startswith("local"):
        return "127.0.0.1"
    return str(session.sparkContext.getConf().get("spark.driver.host"))
