"""A line of text in the cell of a notebook, which is written again and again in the same place."""

from __future__ import annotations

import contextlib
import importlib
import sys
from typing import Any


class CellLine:
    """One output of the cell that has called `begin`; every later text takes the place of the one before. As
    `TerminalLine`, but what others print there stands in outputs of its own, and needs no room made for it."""

    def __init__(self, display: Any) -> None:
        """`display`: IPython's function of this name."""
        self._display = display
        self._handle: Any = None

    columns = 80  # what fits into a cell without a bar to scroll

    def begin(self) -> None:
        """On the thread that runs the cell: other threads may be taken for those of another cell."""
        self._handle = self._display(_plain(""), raw=True, display_id=True)

    def show(self, text: str) -> None:
        if self._handle is not None:
            with contextlib.suppress(Exception):  # nobody looks any more: no reason for a job to end
                self._handle.update(_plain(text), raw=True)

    def erase(self) -> None:
        self.show("")

    def end(self, text: str) -> None:
        """A last text, which stays."""
        self.show(text)


def _plain(text: str) -> dict[str, str]:
    return {"text/plain": text}


def notebook_cell() -> CellLine | None:
    """Where IPython runs this program as a Jupyter kernel (Jupyter, Colab, VS Code); None elsewhere. Nothing is
    imported for it that is not there already."""
    if "ipykernel" not in sys.modules or "IPython" not in sys.modules:
        return None
    shell = sys.modules["IPython"].get_ipython()
    if shell is None or getattr(shell, "kernel", None) is None:
        return None
    return CellLine(importlib.import_module("IPython.display").display)
