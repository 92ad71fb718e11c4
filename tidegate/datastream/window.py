"""PyFlink's path for `tidegate.contracts.window`."""

from tidegate.contracts.window import *  # noqa: F403
from tidegate.contracts.window import __all__ as __all__
