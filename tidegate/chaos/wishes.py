"""What the user of `tidegate chaos` asked for, and the command line that asks for it again."""

from __future__ import annotations

import dataclasses
import shlex
from dataclasses import dataclass

from tidegate.chaos.draws import KINDS


@dataclass(frozen=True)
class Wishes:
    program: str
    arguments: tuple[str, ...] = ()
    rounds: int = 5
    kinds: tuple[str, ...] = tuple(KINDS)
    seed: int = 0
    every_s: float = 2.0
    faults_per_round: int = 4
    stretch_s: float = 8.0  # an undisturbed run is slowed down to last about this long
    records: int | None = None
    duration_s: float | None = None
    keep_sinks: bool = False
    verify: str | None = None  # a command that decides, with `keep_sinks`
    looked_at: bool = False  # with `keep_sinks`: the caller looks at the sinks itself
    order_by: str = "auto"
    settings: tuple[tuple[str, str], ...] = ()
    only_round: int | None = None  # a failed round again

    @property
    def asked_rounds(self) -> int:
        return self.rounds if self.only_round is None else 1

    def command(self, round_number: int) -> str:
        """For a shell: this round again, with the same faults."""
        words = ["tidegate", "chaos", "--seed", str(self.seed), "--round", str(round_number)]
        for name, option in _OPTIONS.items():
            value = getattr(self, name)
            if value != _DEFAULTS[name]:
                words += [option, ",".join(value) if isinstance(value, tuple) else str(value)]
        if self.keep_sinks:
            words.append("--keep-sinks")
        for key, value in self.settings:
            words += ["-D", f"{key}={value}"]
        return shlex.join([*words, self.program, *self.arguments])


_DEFAULTS = {field.name: field.default for field in dataclasses.fields(Wishes)}
_OPTIONS = {
    "kinds": "--faults",
    "every_s": "--every",
    "faults_per_round": "--faults-per-round",
    "stretch_s": "--stretch",
    "records": "--records",
    "duration_s": "--duration",
    "order_by": "--order-by",
    "verify": "--verify",
}
