"""The output of a keyed edge in a batch job: straight into the buffer of the key's group.

A hot path (benchmark `batch`): a group gets a handful of records of each batch, so gathering them per batch first, as a
streaming task does, costs half as much again.
"""

from __future__ import annotations

from typing import Any

from tidegate.contracts.batches import Batch
from tidegate.spark.batch.blocks import BlockChannel, BlockOutput
from tidegate.taskmanager.edge_output import HashOutput


class GroupedHashOutput(HashOutput[BlockChannel]):
    """There are as many channels as there are groups over all targets."""

    def __init__(self, output: BlockOutput, *args: Any, max_parallelism: int) -> None:
        super().__init__(*args, max_parallelism=max_parallelism)
        self._output = output
        self._appends = [channel.values.append for channel in self.channels]
        self._stamp_appends = [channel.stamps.append for channel in self.channels]
        self._stamped = False

    def emit(self, batch: Batch) -> None:
        select, router, appends = self._select, self._router, self._appends
        rows = batch.rows()
        stamps = rows.timestamps
        if (stamps is not None) is not self._stamped:
            for channel in self.channels:
                channel.flush()
            self._stamped = stamps is not None
        try:
            if stamps is None:
                for v in rows.values:
                    appends[router[select(v)]](v)
            else:
                stamp_appends = self._stamp_appends
                for v, t in zip(rows.values, stamps, strict=True):
                    group = router[select(v)]
                    appends[group](v)
                    stamp_appends[group](t)
        except Exception as error:
            if self._takes_lists(rows):
                self.emit(batch)
                return
            self._explain(rows, error)
        self._output.buffered += len(rows)
