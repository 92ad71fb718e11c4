"""The sender's end of a channel whose elements wait for a permission before they are sent."""

from __future__ import annotations

from collections import deque

from tidegate.common.ids import ChannelAddress
from tidegate.contracts.batches import Batch
from tidegate.network.channels import DEFAULT_MAX_BYTES, OutputChannel
from tidegate.network.elements import ControlElement
from tidegate.network.serialization import Element


class WithholdingChannel(OutputChannel):
    """For a model of fault tolerance whose results must not be seen before something is durable.

    What is produced goes to `made`; `release` moves it to the queue, from where it is sent against credit like anything
    else. The batch under construction belongs to neither until `flush`. What is withheld does not count as backlog: who
    withholds decides how much of it there may be."""

    __slots__ = ("made",)

    def __init__(
        self, address: ChannelAddress, credits: int, batch_size: int, max_bytes: int = DEFAULT_MAX_BYTES
    ) -> None:
        super().__init__(address, credits, batch_size, max_bytes)
        self.made: deque[Element] = deque()  # finished and withheld, in order

    def add_control(self, element: ControlElement) -> None:
        """Put a control element behind everything produced so far. None is replaced: each may have been noted
        already."""
        self.flush()
        self.made.append(element)

    def release(self, count: int) -> None:
        """The first `count` elements of `made` may be sent."""
        for _ in range(count):
            element = self.made.popleft()
            if isinstance(element, Batch):
                super()._push(element)
            else:
                self.queue.append(element)

    def _push(self, batch: Batch) -> None:
        self.made.append(batch)
