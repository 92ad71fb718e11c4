"""PyFlink's path for `tidegate.contracts.functions`."""

from tidegate.contracts.functions import *  # noqa: F403
from tidegate.contracts.functions import __all__ as __all__
