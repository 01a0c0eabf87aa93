"""Search spaces by name: plain modules with Choices in them."""

from collections.abc import Mapping
from types import MappingProxyType

SPACES: Mapping[str, str] = MappingProxyType(
    {
        "toy_regression": "10 decisions x 10 fixed 7x7 filters; the paper's toy task",
        "nasbench201": "6 decisions x 4 or 5 operations; the NAS-Bench-201 cell and network",
        "small_cells": "6 decisions x 4 or 5 operations; the same cell in a small network that leans on it",
        "darts": "28 decisions x 7 or 8 operations; the normal and reduction cells of DARTS for CIFAR",
        "mobile": "21 decisions x 6 or 7 operations; the inverted bottlenecks of ProxylessNAS",
        "recurrent_cell": "6 decisions x 5 activations; the recurrent cell of a Penn Treebank language model",
    }
)
"""What there is, without importing any of it."""
