"""PyFlink's path for `tidegate.formats.parquet`."""

from tidegate.formats.parquet import *  # noqa: F403
from tidegate.formats.parquet import __all__ as __all__
