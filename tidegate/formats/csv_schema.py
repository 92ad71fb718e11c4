"""The columns of csv files and how they are written down. Users import it from `tidegate.formats.csv`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tidegate.common.errors import ConfigurationError
from tidegate.common.scalar_types import BasicType
from tidegate.common.typeinfo import BasicTypeInfo, RowTypeInfo, TypeInformation, Types


@dataclass(frozen=True)
class CsvDialect:
    """How fields and lines are told apart."""

    separator: str = ","
    quote: str | None = '"'
    escape: str | None = None
    line_separator: str = "\n"
    element_separator: str = ";"  # '': no arrays
    null: str | None = None
    comments: bool = False

    def options(self) -> dict[str, Any]:
        """The options for the readers and writers of Python's csv module."""
        import csv

        return {
            "delimiter": self.separator,
            "quotechar": self.quote,
            "escapechar": self.escape,
            "doublequote": self.escape is None,
            "quoting": csv.QUOTE_NONE if self.quote is None else csv.QUOTE_MINIMAL,
        }


def one_character(value: object, where: str) -> str:
    if not isinstance(value, str) or len(value) != 1 or value in "\r\n":
        raise ConfigurationError(f"{where}: has to be one character, not a newline, got {value!r}")
    return value


@dataclass(frozen=True)
class CsvColumn:
    name: str
    type_info: TypeInformation
    element_separator: str | None = None  # None: that of the schema


@dataclass(frozen=True)
class CsvSchema:
    """Made with `CsvSchema.builder()`."""

    columns: tuple[CsvColumn, ...]
    dialect: CsvDialect
    use_header: bool = False
    strict_headers: bool = False
    skip_first_data_row: bool = False
    any_property_name: str | None = None

    @staticmethod
    def builder() -> CsvSchemaBuilder:
        return CsvSchemaBuilder()

    def size(self) -> int:
        return len(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def row_type(self) -> RowTypeInfo:
        return Types.ROW_NAMED(list(self.names), [column.type_info for column in self.columns])

    def __str__(self) -> str:
        return f"CsvSchema({', '.join(f'{c.name}: {c.type_info}' for c in self.columns)})"

    __repr__ = __str__


_NUMBERS = frozenset(BasicType) - {BasicType.STRING, BasicType.CHAR, BasicType.BOOLEAN, BasicType.INSTANT}


class CsvSchemaBuilder:
    """Types of numbers and of array elements are those of `Types` (PyFlink has the Table API's here)."""

    def __init__(self) -> None:
        self._columns: list[CsvColumn] = []
        self._dialect = CsvDialect()
        self._schema = CsvSchema((), self._dialect)

    # ------------------------------------------------------------ columns
    def _add(self, name: str, type_info: TypeInformation, separator: str | None = None) -> CsvSchemaBuilder:
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"CsvSchema: a column needs a name, got {name!r}")
        if name in (column.name for column in self._columns):
            raise ConfigurationError(f"CsvSchema: there are two columns '{name}'")
        self._columns.append(CsvColumn(name, type_info, separator))
        return self

    def add_string_column(self, name: str) -> CsvSchemaBuilder:
        return self._add(name, Types.STRING())

    def add_boolean_column(self, name: str) -> CsvSchemaBuilder:
        return self._add(name, Types.BOOLEAN())

    def add_number_column(self, name: str, number_type: TypeInformation | None = None) -> CsvSchemaBuilder:
        """A LONG unless another type is given."""
        found = Types.LONG() if number_type is None else number_type
        if not (isinstance(found, BasicTypeInfo) and found.basic_type in _NUMBERS):
            raise ConfigurationError(
                f"add_number_column('{name}'): number_type has to be a type of numbers such as Types.INT() or "
                f"Types.DOUBLE(), got {number_type!r}"
            )
        return self._add(name, found)

    def add_array_column(
        self, name: str, separator: str = ";", element_type: TypeInformation | None = None
    ) -> CsvSchemaBuilder:
        """Texts unless another type of elements is given."""
        found = Types.STRING() if element_type is None else element_type
        if not isinstance(found, BasicTypeInfo):
            raise ConfigurationError(
                f"add_array_column('{name}'): element_type has to be a basic type such as Types.INT(), "
                f"got {element_type!r}"
            )
        if not isinstance(separator, str) or not separator:
            raise ConfigurationError(f"add_array_column('{name}'): separator has to be text, got {separator!r}")
        return self._add(name, Types.BASIC_ARRAY(found), separator)

    def add_columns_from(self, schema: CsvSchema) -> CsvSchemaBuilder:
        if not isinstance(schema, CsvSchema):
            raise TypeError(f"add_columns_from: takes a CsvSchema, got {schema!r}")
        for column in schema.columns:
            self._add(column.name, column.type_info, column.element_separator)
        return self

    def clear_columns(self) -> CsvSchemaBuilder:
        self._columns.clear()
        return self

    def size(self) -> int:
        return len(self._columns)

    # ------------------------------------------------------------ header
    def set_use_header(self, use: bool = True) -> CsvSchemaBuilder:
        """The first line of a file is a header, read and written. Columns are found by the names in it, in any order; a
        column that a file lacks is None, and what is no column is left out."""
        return self._set(use_header=bool(use))

    def set_strict_headers(self, strict: bool = True) -> CsvSchemaBuilder:
        """The header has to be exactly the names of the columns, in their order; anything else is an error."""
        return self._set(strict_headers=bool(strict))

    def set_skip_first_data_row(self, skip: bool = True) -> CsvSchemaBuilder:
        return self._set(skip_first_data_row=bool(skip))

    def set_any_property_name(self, name: str) -> CsvSchemaBuilder:
        """Lines may have more fields than there are columns; those are left out."""
        return self._set(any_property_name=name)

    # ------------------------------------------------------------ how it is written down
    def set_column_separator(self, char: str) -> CsvSchemaBuilder:
        return self._write(separator=one_character(char, "set_column_separator"))

    def set_quote_char(self, char: str) -> CsvSchemaBuilder:
        return self._write(quote=one_character(char, "set_quote_char"))

    def disable_quote_char(self) -> CsvSchemaBuilder:
        return self._write(quote=None)

    def set_escape_char(self, char: str) -> CsvSchemaBuilder:
        return self._write(escape=one_character(char, "set_escape_char"))

    def disable_escape_char(self) -> CsvSchemaBuilder:
        return self._write(escape=None)

    def set_line_separator(self, separator: str) -> CsvSchemaBuilder:
        """Sets what lines end with in files that are written. A line that is read ends with a newline, after a carriage
        return or not."""
        if separator not in ("\n", "\r\n"):
            raise ConfigurationError(f"set_line_separator: has to be '\\n' or '\\r\\n', got {separator!r}")
        return self._write(line_separator=separator)

    def set_array_element_separator(self, separator: str) -> CsvSchemaBuilder:
        if not isinstance(separator, str) or not separator:
            raise ConfigurationError(f"set_array_element_separator: has to be text, got {separator!r}")
        self._columns = [
            replace(c, element_separator=None) if c.element_separator is not None else c for c in self._columns
        ]
        return self._write(element_separator=separator)

    def disable_array_element_separator(self) -> CsvSchemaBuilder:
        return self._write(element_separator="")

    def remove_array_element_separator(self, index: int) -> CsvSchemaBuilder:
        """The array column at this position becomes a column of text."""
        if not 0 <= index < len(self._columns):
            raise ConfigurationError(f"remove_array_element_separator: there is no column {index}")
        self._columns[index] = CsvColumn(self._columns[index].name, Types.STRING())
        return self

    def set_null_value(self, null_value: str) -> CsvSchemaBuilder:
        """The text that stands for None. Without one None is written as an empty field, and an empty field that is not
        text is read as None."""
        if not isinstance(null_value, str):
            raise ConfigurationError(f"set_null_value: has to be text, got {null_value!r}")
        return self._write(null=null_value)

    def set_allow_comments(self, allow: bool = True) -> CsvSchemaBuilder:
        """Lines that begin with '#' are left out."""
        return self._write(comments=bool(allow))

    def _set(self, **changes: Any) -> CsvSchemaBuilder:
        self._schema = replace(self._schema, **changes)
        return self

    def _write(self, **changes: Any) -> CsvSchemaBuilder:
        self._dialect = replace(self._dialect, **changes)
        return self

    def build(self) -> CsvSchema:
        if not self._columns:
            raise ConfigurationError("CsvSchema: there are no columns; add some, for example add_string_column('name')")
        if self._schema.strict_headers and not self._schema.use_header:
            raise ConfigurationError("CsvSchema: set_strict_headers needs set_use_header")
        signs = [c for c in (self._dialect.separator, self._dialect.quote, self._dialect.escape) if c is not None]
        if len(set(signs)) != len(signs):
            raise ConfigurationError(f"CsvSchema: column separator, quote and escape character have to differ: {signs}")
        return replace(self._schema, columns=tuple(self._columns), dialect=self._dialect)
