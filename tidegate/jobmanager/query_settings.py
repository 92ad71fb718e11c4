"""Which keyed state may be looked at while the job runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tidegate.common import options
from tidegate.common.configuration import Configuration
from tidegate.common.errors import ConfigurationError, StateHiddenError


def hidden_by_descriptor(state: str, operator: str) -> StateHiddenError:
    return StateHiddenError(
        f"state '{state}' of operator '{operator}' is hidden: its descriptor has hide_from_queries()"
    )


@dataclass(frozen=True)
class QuerySettings:
    enabled: bool = True
    hidden: tuple[str, ...] = ()  # patterns of operator/state
    committed_max_read: int = options.COMMITTED_MAX_READ.default  # bytes

    @staticmethod
    def from_configuration(configuration: Configuration) -> QuerySettings:
        hidden = tuple(options.read(configuration, options.QUERYABLE_STATE_HIDDEN) or ())
        for pattern in hidden:
            if "/" not in pattern:
                raise ConfigurationError(
                    f"{options.QUERYABLE_STATE_HIDDEN.key}: '{pattern}' has to be operator/state, for example "
                    f"'{pattern}/*' for all states of the operator with that uid or name"
                )
        return QuerySettings(
            options.read(configuration, options.QUERYABLE_STATE),
            hidden,
            options.read(configuration, options.COMMITTED_MAX_READ),
        )

    def hides(self, operators: Iterable[str], states: Iterable[str]) -> bool:
        """`operators`, `states`: all names of one operator and one state."""
        names = [f"{operator}/{state}" for operator in operators for state in states]
        return any(fnmatchcase(name, pattern) for name in names for pattern in self.hidden)

    def check(self, operators: Iterable[str], states: Iterable[str]) -> None:
        """Raises StateHiddenError."""
        if not self.enabled:
            raise StateHiddenError(
                f"looking at state is switched off for this job: {options.QUERYABLE_STATE.key} is false"
            )
        operators, states = list(operators), list(states)
        if self.hides(operators, states):
            raise StateHiddenError(
                f"state '{states[0]}' of operator '{operators[0]}' is hidden by {options.QUERYABLE_STATE_HIDDEN.key}"
            )
