"""PyFlink's path for `tidegate.formats.orc`."""

from tidegate.formats.orc import *  # noqa: F403
from tidegate.formats.orc import __all__ as __all__
