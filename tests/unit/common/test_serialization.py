from __future__ import annotations

import io

import cloudpickle
import pytest

from tidegate.common import ByteArraySchema, Encoder, Row, SimpleStringSchema, Types
from tidegate.common.errors import ConfigurationError
from tidegate.common.serialization import (
    BulkWriter,
    DeserializationSchema,
    RowDataBulkWriterFactory,
    RowFieldExtractorSchema,
    SerializationSchema,
)


def test_simple_strings_go_both_ways() -> None:
    schema = SimpleStringSchema()
    assert isinstance(schema, SerializationSchema)
    assert isinstance(schema, DeserializationSchema)
    assert schema.serialize("zoë") == "zoë".encode()
    assert schema.deserialize("zoë".encode()) == "zoë"
    assert SimpleStringSchema("ISO-8859-1").serialize("ë") == b"\xeb"
    assert schema.serialize(None) is None
    assert schema.get_produced_type() == Types.STRING()
    assert not schema.is_end_of_stream("x")
    with pytest.raises(TypeError, match="map the stream to str"):
        schema.serialize(3)


def test_an_unknown_charset_is_refused_at_once() -> None:
    for make in (SimpleStringSchema, Encoder.simple_string_encoder):
        with pytest.raises(ConfigurationError, match="Unknown charset 'nope'"):
            make("nope")


def test_bytes() -> None:
    schema = ByteArraySchema()
    assert schema.serialize(bytearray(b"a")) == b"a"
    assert schema.deserialize(b"a") == b"a"
    with pytest.raises(TypeError, match="takes bytes"):
        schema.serialize("a")


def test_a_field_of_a_row() -> None:
    """As PyFlink: what is no bytes becomes its text, what is missing becomes nothing."""
    schema = RowFieldExtractorSchema(1)
    for field, expected in ((b"k", b"k"), ("kö", "kö".encode()), (12, b"12"), (True, b"true"), (None, b"")):
        assert schema.serialize(Row(1, field)) == expected
    assert schema.serialize(None) == b""
    for wrong in (Row(1), (1, b"k")):
        with pytest.raises(TypeError):
            schema.serialize(wrong)
    with pytest.raises(ValueError, match=r"^Field index must be non-negative, got: -1$"):  # as PyFlink says it
        RowFieldExtractorSchema(-1)
    with pytest.raises(ConfigurationError, match="whole number, got: True"):
        RowFieldExtractorSchema(True)


def test_the_simple_encoder_writes_lines() -> None:
    stream = io.BytesIO()
    encoder = cloudpickle.loads(cloudpickle.dumps(Encoder.simple_string_encoder()))
    for value in ("a", 1, (2, "b"), Row(3, "c")):
        encoder.encode(value, stream)
    assert stream.getvalue() == b"a\n1\n(2, 'b')\n+I[3, c]\n"


def test_bulk_writers_of_rows_know_their_type() -> None:
    class Writer(BulkWriter):
        def __init__(self, stream: io.BytesIO) -> None:
            self.stream = stream

        def add_element(self, element: object) -> None:
            self.stream.write(repr(element).encode())

        def flush(self) -> None: ...

        def finish(self) -> None:
            self.stream.write(b"end")

    class Factory(RowDataBulkWriterFactory):
        def create(self, stream: io.BytesIO) -> BulkWriter:
            return Writer(stream)

    factory = Factory(Types.ROW([Types.INT()]))
    assert factory.get_row_type() == Types.ROW([Types.INT()])
    stream = io.BytesIO()
    writer = factory.create(stream)
    writer.add_element(Row(1))
    writer.finish()
    assert stream.getvalue() == b"Row(1)end"
    with pytest.raises(ConfigurationError, match="row type"):
        Factory(Types.INT())  # type: ignore[arg-type]
