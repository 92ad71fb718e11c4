"""PyFlink's path for `tidegate.contracts.state`."""

from tidegate.contracts.state import *  # noqa: F403
from tidegate.contracts.state import __all__ as __all__
