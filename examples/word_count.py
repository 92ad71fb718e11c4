"""Counts words, with the counts kept as state per word.

Run it:  python examples/word_count.py
Each worker prints the running count of the words it owns; then the program prints the final counts. Copy the file,
change it and run it the same way: functions and modules beside the script reach the workers by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.common import Types
from tidegate.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from tidegate.datastream.state import ValueStateDescriptor

LINES = [
    "to be or not to be that is the question",
    "whether tis nobler in the mind to suffer",
    "the slings and arrows of outrageous fortune",
    "or to take arms against a sea of troubles",
]


def split(line: str) -> Iterator[str]:
    yield from line.split()


class CountWords(KeyedProcessFunction):
    """Emits (word, count so far) for every word. The count of each word lives in its own ValueState entry."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, word: str, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[str, int]]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield word, count


def main() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)

    counts = (
        env.from_collection(LINES, Types.STRING())
        .flat_map(split, Types.STRING())
        .name("Split")
        .key_by(lambda word: word)
        .process(CountWords(), Types.TUPLE([Types.STRING(), Types.LONG()]))
        .name("Count")
        .uid("count")
    )
    counts.print("word count")

    final: dict[str, int] = {}
    for word, count in counts.execute_and_collect("Word count"):
        final[word] = max(count, final.get(word, 0))
    print(f"\n{len(final)} different words, {sum(final.values())} in all. The most frequent:")
    for word, count in sorted(final.items(), key=lambda pair: (-pair[1], pair[0]))[:5]:
        print(f"  {word:10} {count}")


if __name__ == "__main__":
    main()
