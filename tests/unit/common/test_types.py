from __future__ import annotations

import copy
import pickle
from datetime import datetime

import cloudpickle
import pytest

from tidegate.common import Row, RowKind


def test_fields_by_position_name_and_attribute() -> None:
    row = Row(name="x", age=3)
    assert (row[0], row["name"], row.name) == ("x", "x", "x")
    assert row[-1] == 3
    assert row[0:2] == ["x", 3]
    assert list(row) == ["x", 3]
    assert len(row) == 2
    assert "x" in row


def test_a_row_of_names_is_a_schema() -> None:
    person = Row("name", "age")
    assert person("x", 3) == Row(name="x", age=3)
    with pytest.raises(TypeError, match="takes 2 values, got 1"):
        person("x")


def test_values_and_names_do_not_mix() -> None:
    with pytest.raises(ValueError, match="not both"):
        Row(1, name="x")


def test_repr_and_str() -> None:
    assert repr(Row(1, "a")) == "Row(1, 'a')"
    assert repr(Row(name="x")) == "Row(name='x')"
    assert str(Row("a", 1)) == "+I[a, 1]"
    times = Row(datetime(2021, 1, 9, 12, 0, 0, 11000), datetime(2021, 1, 9))
    assert str(times) == "+I[2021-01-09 12:00:00.011, 2021-01-09 00:00:00.0]"
    assert str(Row.of_kind(RowKind.DELETE, "a", None, True, [Row(1)], {"k": 1})) == "-D[a, null, true, [+I[1]], {k=1}]"
    assert [str(k) for k in RowKind] == ["+I", "-U", "+U", "-D"]


def test_equality_takes_kind_names_and_values() -> None:
    assert Row(1, 2) == Row(1, 2)
    assert Row(a=1) != Row(b=1)
    assert Row(a=1) != Row(1)
    assert Row(a=1, b=2) == Row(b=2, a=1) != Row(a=2, b=1)
    assert hash(Row(a=1, b=2)) == hash(Row(b=2, a=1))
    assert Row(1) != Row.of_kind(RowKind.DELETE, 1)
    assert Row(1) != (1,)
    assert len({Row(a=1), Row(a=1), Row(a=2)}) == 2
    with pytest.raises(TypeError):
        hash(Row([1]))


def test_setting_fields() -> None:
    row = Row(a=1, b=2)
    row["a"] = 10
    row[1] = 20
    assert row == Row(a=10, b=20)
    with pytest.raises(KeyError, match="no field 'c'"):
        row["c"] = 1
    with pytest.raises(AttributeError):
        row.a = 3


def test_missing_fields() -> None:
    with pytest.raises(AttributeError, match="no field 'c'"):
        _ = Row(a=1).c
    with pytest.raises(KeyError):
        Row(1)["a"]
    with pytest.raises(IndexError):
        Row(1)[1]
    assert not hasattr(Row(1), "a")


def test_field_names() -> None:
    row = Row(1, 2)
    row.set_field_names(["a", "b"])
    assert row == Row(a=1, b=2)
    assert row.get_fields_by_names(["b", "a"]) == [2, 1]
    assert Row(1, 2).get_fields_by_names(["x"]) == [1, 2]
    with pytest.raises(ValueError, match="no fields"):
        row.get_fields_by_names(["z"])
    with pytest.raises(ValueError, match="1 field names"):
        row.set_field_names(["a"])
    with pytest.raises(ValueError, match="must differ"):
        row.set_field_names(["a", "a"])


def test_as_dict() -> None:
    row = Row(a=Row(b=1), c=[Row(d=2)], e={"k": Row(f=3)}, g=(Row(h=4),))
    assert row.as_dict()["a"] == Row(b=1)
    assert row.as_dict(recursive=True) == {"a": {"b": 1}, "c": [{"d": 2}], "e": {"k": {"f": 3}}, "g": ({"h": 4},)}
    with pytest.raises(TypeError, match="without field names"):
        Row(1).as_dict()


@pytest.mark.parametrize("row", [Row(), Row(1, "a"), Row(a=1, b=[1]), Row.of_kind(RowKind.UPDATE_AFTER, a=Row(b=1))])
def test_rows_survive_pickling_and_copying(row: Row) -> None:
    for twin in (
        pickle.loads(pickle.dumps(row)),
        cloudpickle.loads(cloudpickle.dumps(row)),
        copy.copy(row),
        copy.deepcopy(row),
    ):
        assert twin == row
        assert twin.get_row_kind() is row.get_row_kind()


def test_a_copy_does_not_share_fields() -> None:
    row = Row(a=1)
    twin = copy.copy(row)
    twin["a"] = 2
    assert row.a == 1


def test_row_kind_is_checked() -> None:
    with pytest.raises(TypeError, match="RowKind"):
        Row(1).set_row_kind("+I")  # type: ignore[arg-type]
