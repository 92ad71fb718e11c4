"""Writes `docs/configuration.md` from the table of options (`make docs`). Without a path the page is printed."""

from __future__ import annotations

import sys
from pathlib import Path

from tidegate.common import options
from tidegate.common.config_options import ConfigOption


def configuration_page() -> str:
    """The whole text of `docs/configuration.md`."""
    sections = (
        ("The job", ("parallelism.", "pipeline.", "execution.runtime", "execution.buffer")),
        ("Batch execution", ("execution.batch.",)),
        ("Checkpoints", ("execution.checkpointing.",)),
        ("State and its recovery", ("state.", "queryable-state.", "execution.state-recovery.")),
        ("Restarts", ("restart-strategy.",)),
        ("High availability", ("high-availability.",)),
        ("The port for commands", ("rest.",)),
        ("Failure detection and the end of tasks", ("heartbeat.", "task.", "metrics.")),
        ("Tidegate's own", ("tidegate.",)),
    )
    lines = [
        "# Configuration",
        "",
        "<!-- Written by `make docs` from tidegate/common/options.py: change it there. -->",
        "",
        "Set in a `Configuration` that is given to `StreamExecutionEnvironment.get_execution_environment(config)`, or",
        "with `env.configure(config)`. Durations are written as `500 ms`, `10 s`, `1 min` (a plain number is",
        "milliseconds), memory sizes as `5 mb`. Keys that start with `spark.` are handed to Spark. An unknown key is",
        "an error; keys that Flink has and Tidegate does not use give a warning.",
    ]
    for title, prefixes in sections:
        lines += ["", f"## {title}", "", "| key | type | default | meaning |", "|---|---|---|---|"]
        lines += [_page_line(option) for option in options.ALL_OPTIONS if option.key.startswith(prefixes)]
    return "\n".join(lines) + "\n"


def _page_line(option: ConfigOption) -> str:
    kind = ", ".join(f"`{c}`" for c in option.choices) or option.type.value
    default = f"`{option.format(option.default)}`" if option.default not in (None, [], {}) or option.special else "none"
    also = f" Also as {', '.join(f'`{a}`' for a in option.aliases)}." if option.aliases else ""
    return f"| `{option.key}` | {kind} | {default} | {option.description}{also} |"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(configuration_page(), encoding="utf-8")
    else:
        print(configuration_page(), end="")
