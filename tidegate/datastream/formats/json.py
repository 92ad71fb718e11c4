"""PyFlink's path for `tidegate.formats.json`."""

from tidegate.formats.json import *  # noqa: F403
from tidegate.formats.json import __all__ as __all__
