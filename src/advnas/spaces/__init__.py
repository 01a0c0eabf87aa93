"""Search spaces by name: plain modules with Choices. Adding one: write its file, and give it a line below."""

from typing import TYPE_CHECKING, Any

from advnas.arguments import Builder, build

if TYPE_CHECKING:
    from torch import nn

SPACES: dict[str, Builder] = {
    "toy_regression": Builder(
        "advnas.spaces.toy_regression:build",
        "10 decisions x 10 fixed 7x7 filters; the paper's toy task",
    ),
    "nasbench201": Builder(
        "advnas.spaces.nasbench201:build",
        "6 decisions x 4 or 5 operations; the NAS-Bench-201 cell and network",
    ),
    "small_cells": Builder(
        "advnas.spaces.small_cells:build",
        "6 decisions x 4 or 5 operations; the same cell in a small network that leans on it",
    ),
    "darts": Builder(
        "advnas.spaces.darts:build",
        "28 decisions x 7 or 8 operations; the normal and reduction cells of DARTS for CIFAR",
    ),
    "mobile": Builder(
        "advnas.spaces.mobile:build",
        "21 decisions x 6 or 7 operations; the inverted bottlenecks of ProxylessNAS",
    ),
    "nasbench_macro": Builder(
        "advnas.spaces.nasbench_macro:build",
        "8 decisions x 3 operations; the layers of the NAS-Bench-Macro network",
    ),
    "recurrent_cell": Builder(
        "advnas.spaces.recurrent_cell:build",
        "6 decisions x 5 activations; the recurrent cell of a Penn Treebank language model",
    ),
    "character_model": Builder(
        "advnas.spaces.character_model:build",
        "16 decisions x 5 operations; a small language model of which every layer is open",
    ),
}
"""What there is, without importing any of it."""


def get(name: str, **options: Any) -> "nn.Module":
    """Build the network of a space, e.g. get("darts", channels=8).

    Args:
        name: one of `SPACES`.
        options: arguments of its builder.

    Returns:
        A module with Choices in it, its weights drawn from torch's global generator.

    Raises:
        ValueError: there is no such space, or it has no such option.
    """
    network: nn.Module = build("space", SPACES, name, options)
    return network
