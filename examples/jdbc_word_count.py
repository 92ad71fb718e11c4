"""Counts words into a table of PostgreSQL through `JdbcSink`, as a PyFlink job does.

Start one (`make postgres` in a checkout), make a table (`CREATE TABLE words (word text PRIMARY KEY, count int8)`), and
run:

    python examples/jdbc_word_count.py --url jdbc:postgresql://host:5432/postgres --user postgres --to words

`JdbcSink` writes at least once. Here that is enough: the statement sets the count of a word, so writing it again
changes nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from tidegate.common import Types
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors.jdbc import JdbcConnectionOptions, JdbcExecutionOptions, JdbcSink

LINES = ["to be or not to be", "that is the question"]


def words(line: str) -> Iterator[tuple[str, int]]:
    for word in line.split():
        yield word, 1


def add(a: tuple[str, int], b: tuple[str, int]) -> tuple[str, int]:
    return a[0], a[1] + b[1]


def build(env: StreamExecutionEnvironment, url: str, user: str, table: str) -> None:
    sink = JdbcSink.sink(
        f"INSERT INTO {table} (word, count) VALUES (?, ?) ON CONFLICT (word) DO UPDATE SET count = excluded.count",
        Types.ROW([Types.STRING(), Types.LONG()]),
        JdbcConnectionOptions.JdbcConnectionOptionsBuilder().with_url(url).with_user_name(user).build(),
        JdbcExecutionOptions.builder().with_batch_size(1000).with_batch_interval_ms(200).with_max_retries(3).build(),
    )
    counts = env.from_collection(LINES).flat_map(words, Types.TUPLE([Types.STRING(), Types.LONG()]))
    counts.key_by(lambda pair: pair[0]).reduce(add).add_sink(sink)


def main() -> None:
    parser = argparse.ArgumentParser(description="Counts words into a table.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--user", required=True)
    parser.add_argument("--to", required=True, metavar="TABLE")
    arguments = parser.parse_args()
    env = StreamExecutionEnvironment.get_execution_environment()
    build(env, arguments.url, arguments.user, arguments.to)
    env.execute("words through JDBC")


if __name__ == "__main__":
    main()
