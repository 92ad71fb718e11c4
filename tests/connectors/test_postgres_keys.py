"""Upserts by keys that are the same to the database and not to Python, in an order that counts; and rows that nobody
could apply any more once a checkpoint holds them."""

from __future__ import annotations

import dataclasses
import datetime
import pickle
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from tests.connectors.database import Database
from tests.connectors.test_postgres_sink import barrier_of, open_writer, to
from tidegate.common import Row
from tidegate.common.errors import ConfigurationError
from tidegate.common.types import RowKind
from tidegate.connectors.postgres.connection import PostgresError
from tidegate.connectors.postgres.upsert import Lot

WITHOUT_CASE = """
    CREATE TYPE {0};
    CREATE FUNCTION {0}_in(cstring) RETURNS {0} LANGUAGE internal IMMUTABLE STRICT AS 'textin';
    CREATE FUNCTION {0}_out({0}) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'textout';
    CREATE FUNCTION {0}_receive(internal) RETURNS {0} LANGUAGE internal STABLE STRICT AS 'textrecv';
    CREATE FUNCTION {0}_send({0}) RETURNS bytea LANGUAGE internal STABLE STRICT AS 'textsend';
    CREATE TYPE {0} (INPUT = {0}_in, OUTPUT = {0}_out, RECEIVE = {0}_receive, SEND = {0}_send,
        INTERNALLENGTH = VARIABLE, STORAGE = extended, CATEGORY = 'S', COLLATABLE = true);
    CREATE CAST ({0} AS text) WITHOUT FUNCTION AS IMPLICIT;
    CREATE FUNCTION {0}_cmp({0}, {0}) RETURNS int4 LANGUAGE sql IMMUTABLE STRICT
        AS 'SELECT bttextcmp(lower($1::text), lower($2::text))';
    {1}
    CREATE OPERATOR CLASS {0}_ops DEFAULT FOR TYPE {0} USING btree AS OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =,
        OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 {0}_cmp({0}, {0});
"""
"""A type as the extension citext makes one, which not every PostgreSQL brings."""
OPERATOR = """
    CREATE FUNCTION {0}_{1}({0}, {0}) RETURNS bool LANGUAGE sql IMMUTABLE STRICT AS 'SELECT {0}_cmp($1, $2) {2} 0';
    CREATE OPERATOR {2} (FUNCTION = {0}_{1}, LEFTARG = {0}, RIGHTARG = {0}{3});
"""


@pytest.fixture(scope="module")
def without_case(database: Database) -> Iterator[str]:
    name = f"text_{uuid.uuid4().hex[:10]}"
    operators = [("lt", "<", ""), ("le", "<=", ""), ("eq", "=", ", MERGES"), ("ge", ">=", ""), ("gt", ">", "")]
    database.execute(WITHOUT_CASE.format(name, "".join(OPERATOR.format(name, *operator) for operator in operators)))
    yield name
    database.execute(f"DROP TYPE {name} CASCADE")


@pytest.fixture
def nondeterministic(database: Database, name: str) -> Iterator[str]:
    how = "provider = icu, locale = 'und-u-ks-level2', deterministic = false"
    try:
        database.execute(f"CREATE COLLATION {name}_ci ({how})")
    except psycopg.errors.FeatureNotSupported:
        pytest.skip("this PostgreSQL was built without ICU: all its collations are deterministic")
    yield f"{name}_ci"
    database.execute(f"DROP COLLATION {name}_ci CASCADE")


def delete(key: Any) -> Row:
    return Row.of_kind(RowKind.DELETE, key=key, text=None)


def check_keys(database: Database, table: str, one: Any, same: Any, other: Any) -> None:
    """`one` and `same` are the same key to the database."""
    writer = open_writer(to(database, table).upsert("key").build())

    def after(*changes: Any) -> list[str]:
        lots = pickle.loads(pickle.dumps(barrier_of(writer, list(changes))))
        for _ in range(2):
            assert writer.committer.commit(lots) == []
        return [text for (text,) in database.execute(f"SELECT text FROM {table} ORDER BY text")]

    assert after((one, "first"), (other, "other"), (same, "second")) == ["other", "second"]
    assert after((same, "third"), (one, "fourth")) == ["fourth", "other"]
    assert after(delete(one), (same, "fifth")) == ["fifth", "other"]
    assert after((same, "sixth"), delete(one)) == ["other"]
    assert after(delete(same), (one, "seventh"), delete(same), (one, "eighth"), (other, "more")) == ["eighth", "more"]
    assert after(delete(one), delete(same)) == ["more"]
    writer.close()


MOMENT = datetime.datetime(2026, 5, 1, 12, 0, 0, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("kind", "one", "same", "other"),
    [
        ("char(5)", "a", "a  ", "b"),
        ("varchar(3)", "abc", "abc ", "ab"),
        ("numeric(4, 2)", Decimal("0.001"), Decimal("0.002"), Decimal("0.01")),
        ("numeric", Decimal("NaN"), Decimal("-NaN"), Decimal(0)),
        ("float8", float("nan"), -float("nan"), 0.0),
        ("float8", 0.0, -0.0, 0.5),
        ("float4", 0.1, 0.10000000149, 0.2),
        ("timestamptz(0)", MOMENT, MOMENT.replace(microsecond=1000), MOMENT.replace(second=7)),
        ("int8", 1, 1, 2),
    ],
)
def test_keys_that_the_database_rounds_or_pads_to_the_same(
    database: Database, name: str, kind: str, one: Any, same: Any, other: Any
) -> None:
    database.execute(f"CREATE TABLE {name} (key {kind} PRIMARY KEY, text text)")
    check_keys(database, name, one, same, other)


def test_keys_of_a_type_that_compares_without_case(database: Database, name: str, without_case: str) -> None:
    database.execute(f"CREATE TABLE {name} (key {without_case} PRIMARY KEY, text text)")
    check_keys(database, name, "A", "a", "b")


@pytest.mark.parametrize("of_the_index_only", [False, True])
def test_keys_of_a_collation_that_compares_without_case(
    database: Database, name: str, nondeterministic: str, of_the_index_only: bool
) -> None:
    collation = f'COLLATE "{nondeterministic}"'
    database.execute(f"CREATE TABLE {name} (key text {'' if of_the_index_only else collation}, text text)")
    database.execute(f"CREATE UNIQUE INDEX ON {name} (key{f' {collation}' if of_the_index_only else ''})")
    check_keys(database, name, "A", "a", "b")


def test_a_unique_index_with_another_collation_than_its_column(database: Database, name: str) -> None:
    database.execute(f'CREATE TABLE {name} (key text COLLATE "C", text text)')
    database.execute(f'CREATE UNIQUE INDEX ON {name} (key COLLATE "POSIX")')
    check_keys(database, name, "a", "a", "b")


def test_a_key_of_two_columns_and_nothing_else(database: Database, name: str, without_case: str) -> None:
    database.execute(f"CREATE TABLE {name} (place {without_case}, n int4, PRIMARY KEY (place, n))")
    writer = open_writer(to(database, name).upsert().build())
    gone = Row.of_kind(RowKind.DELETE, place="a", n=2)
    lots = barrier_of(writer, [("A", 1), ("a", 1), ("A", 2), ("b", 2), gone])
    assert writer.committer.commit(lots) == []
    assert database.psql(f"SELECT * FROM {name} ORDER BY place") in ("A|1\nb|2\n", "a|1\nb|2\n")
    writer.close()


def test_what_is_deleted_leaves_room_in_another_unique_index(database: Database, name: str) -> None:
    database.execute(f"CREATE TABLE {name} (id int4 PRIMARY KEY, mail text UNIQUE)")
    writer = open_writer(to(database, name).upsert().build())
    assert writer.committer.commit(barrier_of(writer, [(1, "me"), (2, "you")])) == []
    changes = [Row.of_kind(RowKind.DELETE, id=1, mail="me"), (2, "two"), (3, "me"), (4, "you")]
    assert writer.committer.commit(barrier_of(writer, changes)) == []
    assert database.psql(f"SELECT * FROM {name} ORDER BY id") == "2|two\n3|me\n4|you\n"
    writer.close()


def test_a_row_may_be_changed_to_refer_to_another_before_the_one_it_refers_to_is_deleted(
    database: Database, name: str
) -> None:
    database.execute(f"CREATE TABLE {name} (id int4 PRIMARY KEY, parent int4 REFERENCES {name})")
    writer = open_writer(to(database, name).upsert().build())
    assert writer.committer.commit(barrier_of(writer, [(1, None), (2, None), (3, 1)])) == []
    changes = [(3, 2), Row.of_kind(RowKind.DELETE, id=1, parent=None)]
    assert writer.committer.commit(barrier_of(writer, changes)) == []
    assert database.psql(f"SELECT * FROM {name} ORDER BY id") == "2|\n3|2\n"
    writer.close()


def test_a_lot_of_an_earlier_version_is_applied(database: Database, name: str) -> None:
    """It does not say where its deletes come."""
    database.execute(f"CREATE TABLE {name} (key numeric PRIMARY KEY, place text)")
    writer = open_writer(to(database, name).upsert().build())
    gone = Row.of_kind(RowKind.DELETE, key=1, place=None)
    assert writer.committer.commit(barrier_of(writer, [(1, "a"), (2, "b")])) == []
    (lot,) = barrier_of(writer, [gone, (2, "c")])
    old: Lot = object.__new__(Lot)
    old.__dict__.update({field: value for field, value in lot.__dict__.items() if field != "delete_places"})
    assert dataclasses.replace(lot, delete_places=None) == pickle.loads(pickle.dumps(old))
    assert writer.committer.commit([pickle.loads(pickle.dumps(old))]) == []
    assert database.psql(f"SELECT * FROM {name}") == "2|c\n"
    writer.close()


def test_a_key_without_a_unique_index_is_refused_before_the_start(database: Database, name: str) -> None:
    database.execute(f"CREATE TABLE {name} (id int4 PRIMARY KEY, a int4, b int4 UNIQUE DEFERRABLE, c int4)")
    database.execute(f"CREATE UNIQUE INDEX ON {name} (c) WHERE c > 0")
    for key in (["a"], ["id", "a"], ["b"], ["c"]):
        with pytest.raises(ConfigurationError, match=f"no unique index on exactly the columns {', '.join(key)} that"):
            to(database, name).upsert(*key).build().check_start(1)
    database.execute(f"CREATE UNIQUE INDEX ON {name} (a) INCLUDE (c)")
    to(database, name).upsert("a").build().check_start(1)
    database.execute(f"CREATE VIEW {name}_view AS SELECT * FROM {name}")
    writer = open_writer(to(database, f"{name}_view").upsert("id").build())
    assert writer.committer.commit(barrier_of(writer, [(1, 2, 3, 4), (1, 3, 4, 5)])) == []
    assert database.psql(f"SELECT * FROM {name}") == "1|3|4|5\n"
    writer.close()


# ---------------------------------------------------------------- rows that cannot be written


@pytest.mark.parametrize("upsert", [False, True], ids=["append", "upsert"])
@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("one", 1, "x"), "does not fit the columns' types: TypeError"),
        ((1, 2**40, "x"), "small is out of range of integer"),
        ((1, -(2**31) - 1, "x"), "small is out of range of integer"),
        ((2**70, 1, "x"), "does not fit the columns' types: OverflowError"),
        ((1, 1, 5), "does not fit the columns' types: TypeError"),
        ((1, 1, "a\0b"), "null character|0x00"),
        ((1, 1, None), "text is NOT NULL|violates not-null constraint"),
    ],
)
def test_a_row_that_cannot_be_written_is_refused_before_a_checkpoint_holds_it(
    database: Database, name: str, upsert: bool, row: tuple[Any, ...], message: str
) -> None:
    database.execute(f"CREATE TABLE {name} (id int8 PRIMARY KEY, small int4, text text NOT NULL)")
    sink = (to(database, name).upsert() if upsert else to(database, name)).build()
    writer = open_writer(sink)
    with pytest.raises(PostgresError, match=message):
        barrier_of(writer, [(5, None, "fine"), row])
    writer.close()
    again = open_writer(sink)
    rows = [(5, None, "fine"), (6, -(2**31), "fine"), (7, 2**31 - 1, "")]
    assert again.committer.commit(barrier_of(again, rows)) == []
    assert database.execute(f"SELECT * FROM {name} ORDER BY id") == rows
    again.close()


def test_a_column_of_padded_text_is_written(database: Database, name: str) -> None:
    database.execute(f"CREATE DOMAIN {name}_code AS char(3)")
    database.execute(f"CREATE TABLE {name} (id int4, padded char(4), code {name}_code)")
    writer = open_writer(to(database, name).build())
    assert writer.committer.commit(barrier_of(writer, [(1, "a", "b"), (2, "abcd", None)])) == []
    assert database.psql(f"SELECT * FROM {name} ORDER BY id") == "1|a   |b  \n2|abcd|\n"
    writer.close()


def test_a_column_of_a_type_that_cannot_be_written_is_refused_before_the_start(database: Database, name: str) -> None:
    database.execute(f"CREATE TABLE {name} (id int4 PRIMARY KEY, price money)")
    with pytest.raises(ConfigurationError, match=r"column 'price' of .* is of type money, which cannot be written"):
        to(database, name).build().check_start(1)


def test_a_delete_needs_nothing_but_a_key_that_fits(database: Database, name: str) -> None:
    database.execute(f"CREATE TABLE {name} (key int4 PRIMARY KEY, text text NOT NULL)")
    writer = open_writer(to(database, name).upsert().build())
    assert writer.committer.commit(barrier_of(writer, [(1, "a")])) == []
    assert writer.committer.commit(barrier_of(writer, [delete(1)])) == []
    assert database.execute(f"SELECT * FROM {name}") == []
    with pytest.raises(PostgresError, match="does not fit the columns' types"):
        writer.write_batch([delete("one")], None)
    writer.close()


def test_a_trigger_may_fill_in_what_must_not_be_null(database: Database, name: str) -> None:
    database.execute(f"CREATE TABLE {name} (id int4 PRIMARY KEY, text text NOT NULL)")
    database.execute(
        f"CREATE FUNCTION {name}_fill() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN NEW.text := coalesce(NEW.text, $$filled$$); RETURN NEW; END'"
    )
    database.execute(f"CREATE TRIGGER fill BEFORE INSERT ON {name} FOR EACH ROW EXECUTE FUNCTION {name}_fill()")
    writer = open_writer(to(database, name).upsert().build())
    assert writer.committer.commit(barrier_of(writer, [(1, None)])) == []
    assert database.psql(f"SELECT * FROM {name}") == "1|filled\n"
    writer.close()


def test_rows_that_only_the_database_can_refuse_wait_until_it_takes_them(database: Database, name: str) -> None:
    database.execute(f"CREATE TABLE {name} (id int4 PRIMARY KEY, text varchar(3))")
    writer = open_writer(to(database, name).upsert().build())
    lots = barrier_of(writer, [(1, "long")])
    with pytest.raises(PostgresError, match=r"too long.*goes on from it as soon as the table takes them"):
        writer.committer.commit(lots)
    database.execute(f"ALTER TABLE {name} ALTER text TYPE varchar(9)")
    assert writer.committer.commit(lots) == []
    assert database.psql(f"SELECT * FROM {name}") == "1|long\n"
    writer.close()
