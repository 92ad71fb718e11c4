"""Carrying out the instructions of a JobMaster: what each of its hosts does, one method per instruction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import assert_never

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
    RecordSnapshot,
    Send,
    StateReadDone,
    StatusChanged,
    SubmitGang,
    WriteMetadata,
)


class InstructionCarrier(ABC):
    """A host of a JobMaster. The instructions themselves say what each method has to do and which event answers it.

    `carry_out` takes the instructions of one event, in order. A host that does nothing about an instruction has to say
    so in a method: none is ignored by accident, and a new instruction does not type-check before all hosts know it."""

    def carry_out(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Send():
                    self.send(instruction)
                case SubmitGang():
                    self.submit_gang(instruction)
                case CancelGang():
                    self.cancel_gang(instruction)
                case WriteMetadata():
                    self.write_metadata(instruction)
                case RecordSnapshot():
                    self.record_snapshot(instruction)
                case DeleteSavepoint():
                    self.delete_savepoint(instruction)
                case DeleteState():
                    self.delete_state(instruction)
                case DeleteOrphans():
                    self.delete_orphans(instruction)
                case DeleteClaimed():
                    self.delete_claimed(instruction)
                case CheckpointRequestDone():
                    self.request_done(instruction)
                case DeliverResults():
                    self.deliver_results(instruction)
                case DiscoverSplits():
                    self.discover_splits(instruction)
                case StateReadDone():
                    self.state_read_done(instruction)
                case StatusChanged():
                    self.status_changed(instruction)
                case JobEnded():
                    self.job_ended(instruction)
                case Log():
                    self.log(instruction)
                case _:
                    assert_never(instruction)

    @abstractmethod
    def send(self, instruction: Send) -> None: ...

    @abstractmethod
    def submit_gang(self, instruction: SubmitGang) -> None: ...

    @abstractmethod
    def cancel_gang(self, instruction: CancelGang) -> None: ...

    @abstractmethod
    def write_metadata(self, instruction: WriteMetadata) -> None: ...

    @abstractmethod
    def record_snapshot(self, instruction: RecordSnapshot) -> None: ...

    @abstractmethod
    def delete_savepoint(self, instruction: DeleteSavepoint) -> None: ...

    @abstractmethod
    def delete_state(self, instruction: DeleteState) -> None: ...

    @abstractmethod
    def delete_orphans(self, instruction: DeleteOrphans) -> None: ...

    @abstractmethod
    def delete_claimed(self, instruction: DeleteClaimed) -> None: ...

    @abstractmethod
    def request_done(self, instruction: CheckpointRequestDone) -> None: ...

    @abstractmethod
    def deliver_results(self, instruction: DeliverResults) -> None: ...

    @abstractmethod
    def discover_splits(self, instruction: DiscoverSplits) -> None: ...

    @abstractmethod
    def state_read_done(self, instruction: StateReadDone) -> None: ...

    @abstractmethod
    def status_changed(self, instruction: StatusChanged) -> None: ...

    @abstractmethod
    def job_ended(self, instruction: JobEnded) -> None: ...

    @abstractmethod
    def log(self, instruction: Log) -> None: ...
