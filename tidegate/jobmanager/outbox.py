"""Collects the instructions of one step, in order."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.common.ids import SlotIndex
from tidegate.jobmanager.gang import Gang
from tidegate.protocol.instructions import Instruction, Log, Send
from tidegate.protocol.messages import Leave, MasterToSlot, Register


class Outbox:
    """`flush` hands over what the other methods have collected."""

    def __init__(self) -> None:
        self._instructions: list[Instruction] = []

    def add(self, instruction: Instruction) -> None:
        self._instructions.append(instruction)

    def extend(self, instructions: Iterable[Instruction]) -> None:
        self._instructions.extend(instructions)

    def log(self, level: int, text: str, in_view: bool = False) -> None:
        self.add(Log(level, text, in_view))

    def send(self, gang: Gang, slot: SlotIndex, message: MasterToSlot) -> None:
        """Nothing is sent to a slot that has not registered."""
        member = gang.members.get(slot)
        if member is not None:
            self.add(Send(slot, message, member.incarnation))

    def send_all(self, gang: Gang, message: MasterToSlot) -> None:
        for slot in sorted(gang.members):
            self.send(gang, slot, message)

    def refuse(self, message: Register, reason: str) -> None:
        """To a worker that is not, or no longer, a member of the gang."""
        self.add(Send(message.slot, Leave(attempt=message.attempt, reason=reason), message.incarnation))

    def flush(self) -> list[Instruction]:
        instructions, self._instructions = self._instructions, []
        return instructions

    @property
    def empty(self) -> bool:
        return not self._instructions
