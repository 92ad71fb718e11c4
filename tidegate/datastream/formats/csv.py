"""PyFlink's path for `tidegate.formats.csv`."""

from tidegate.formats.csv import *  # noqa: F403
from tidegate.formats.csv import __all__ as __all__
