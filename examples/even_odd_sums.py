"""The textbook example of a checkpoint: two streams of natural numbers, the sum of the even and of the odd ones.

Run it:  python examples/even_odd_sums.py

Two sources, blue and yellow, both emit 1, 2, 3, ... 10. The even numbers of both go to one task, the odd ones to
another; each keeps a sum. When the odd task is about to add its first 7 it fails, in the first attempt only. The job
goes back to its latest checkpoint, sources and sums together, and in the end the sums are right.

Every barrier, alignment and snapshot is printed (`tidegate.checkpoint.trace`): docs/concepts/checkpoints.md walks
through the output of a run, line by line.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from tidegate.common import Configuration, RestartStrategies, Types, WatermarkStrategy
from tidegate.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from tidegate.datastream.connectors import DataGeneratorSource
from tidegate.datastream.state import ValueStateDescriptor

LAST = 10
COLOURS = ("blue", "yellow")


def tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def number(i: int) -> tuple[str, int]:
    """Record i of all: blue 1, yellow 1, blue 2, yellow 2, ... Even indices are read by subtask 1, odd ones by 2."""
    colour, value = COLOURS[i % 2], i // 2 + 1
    if colour == "yellow":
        time.sleep(0.04)  # a slow source: its barrier comes later than that of the other one
    tell(f"source {colour}: {value}")
    return colour, value


def parity(record: tuple[str, int]) -> str:
    return "even" if record[1] % 2 == 0 else "odd"


class Sum(KeyedProcessFunction):
    """The sum of its key is the state. Emits (parity, sum)."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum", Types.LONG()))
        self.first_attempt = runtime_context.get_attempt_number() == 0

    def process_element(self, record: tuple[str, int], ctx: KeyedProcessFunction.Context) -> Iterator[tuple[str, int]]:
        colour, value = record
        if value == 7 and self.first_attempt:
            tell(f"sum_odd: about to add {colour} 7 ... fails")
            raise RuntimeError("the odd task fails before it adds 7")
        total = (self.sum.value() or 0) + value
        self.sum.update(total)
        tell(f"sum_{ctx.get_current_key()}: {colour} {value} -> {total}")
        yield ctx.get_current_key(), total


def main() -> int:
    config = Configuration()
    config.set_string("tidegate.checkpoint.trace", "true")
    env = StreamExecutionEnvironment.get_execution_environment(config)
    env.set_parallelism(2)
    env.set_buffer_timeout(0)  # every number travels at once: easier to follow
    env.enable_checkpointing(250)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(1, 0))

    source = DataGeneratorSource(number, 2 * LAST, 20)
    sums = (
        env.from_source(source, WatermarkStrategy.no_watermarks(), "Numbers")
        .uid("numbers")
        .key_by(parity)
        .process(Sum(), Types.TUPLE([Types.STRING(), Types.LONG()]))
        .name("Sum")
        .uid("sum")
    )
    final = {"even": 0, "odd": 0}
    count = 0
    for key, total in sums.execute_and_collect("Even and odd sums"):
        final[key] = max(final[key], total)
        count += 1

    right = {
        "even": 2 * sum(n for n in range(1, LAST + 1) if n % 2 == 0),
        "odd": 2 * sum(n for n in range(1, LAST + 1) if n % 2 == 1),
    }
    print(f"\nsum of the even numbers: {final['even']} (right: {right['even']})")
    print(f"sum of the odd numbers:  {final['odd']} (right: {right['odd']})")
    print(f"results: {count} (right: {2 * LAST})")
    return 0 if final == right and count == 2 * LAST else 1


if __name__ == "__main__":
    sys.exit(main())
