"""Checks that third parties can run on their own strategies and spaces."""

from advnas.testing.spaces import check_space
from advnas.testing.strategies import check_strategy

__all__ = ["check_space", "check_strategy"]
