"""The debug mode `tidegate.debug.check-mutations`: notices what user code has changed in place.

State that was read or written, changed, and not written again is an error (`state_watch`): the change would be lost, or
half lost, after a recovery. A record that a function changes in place is worth a warning: nobody else may be using it
now, but an operator that keeps it in its state would see the change too.

Off, the mode costs nothing: state objects are wrapped, and methods replaced, only when an operator is made with it on.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from typing import Any

from tidegate.common.errors import MutatedInputWarning, MutationError
from tidegate.common.value_conversion import shorten
from tidegate.contracts.batches import RecordBatch
from tidegate.taskmanager.operators.base import FunctionOperator, Operator
from tidegate.taskmanager.state_watch import MutationWatch, Seen, fingerprint


def check_mutations(operator: Operator) -> None:
    """Stand around an operator that is in the debug mode. Before it is wired to the others."""
    if not isinstance(operator, FunctionOperator):
        return
    _InputChecks(operator).install()
    watch = operator.context.watch
    if watch is not None:
        for method in ("process", "process_second", "fire_event_timers", "fire_processing_timers"):
            setattr(operator, method, _then_verify(operator, getattr(operator, method), watch))
        prepare_barrier = operator.prepare_barrier

        def verify_and_prepare(*args: Any) -> None:
            _verify(operator, watch, all_held=True)
            prepare_barrier(*args)

        setattr(operator, "prepare_barrier", verify_and_prepare)  # noqa: B010 (mypy has no word for it)


def _then_verify(operator: Operator, method: Callable[..., Any], watch: MutationWatch) -> Callable[..., Any]:
    def called(*args: Any) -> Any:
        result = method(*args)
        _verify(operator, watch)
        return result

    return called


def _verify(operator: Operator, watch: MutationWatch, all_held: bool = False) -> None:
    try:
        watch.verify(all_held)
    except MutationError as error:
        operator.fail("its function", error)


class _InputChecks:
    """Warns once for an operator, and only for the innermost one: those before it in the chain pass the record on."""

    found = 0  # over all operators

    def __init__(self, operator: FunctionOperator) -> None:
        self._operator = operator
        self._warned = False

    def install(self) -> None:
        operator = self._operator
        for method in ("process", "process_second"):
            setattr(operator, method, self._checked(getattr(operator, method)))

    def _checked(self, process: Callable[[RecordBatch], None]) -> Callable[[RecordBatch], None]:
        def checked(batch: RecordBatch) -> None:
            before = [Seen(v, fingerprint, found) for v in batch.values if (found := fingerprint(v))]
            found_so_far = _InputChecks.found
            process(batch)
            if _InputChecks.found > found_so_far:
                return
            for seen in before:
                if seen.changed:
                    _InputChecks.found += 1
                    self._warn(seen)
                    return

        return checked

    def _warn(self, seen: Seen) -> None:
        if self._warned:
            return
        self._warned = True
        warnings.warn(
            f"operator '{self._operator.name}' changes the records that it is given in place: "
            f"{shorten(pickle.loads(seen.print))} became {shorten(seen.value)}. An operator that keeps such a record, "
            "in its state or in a list, sees it changed: make a new record instead.",
            MutatedInputWarning,
            stacklevel=2,
        )
