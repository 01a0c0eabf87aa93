"""The multiply-adds of an architecture: the products of its matrix multiplications and convolutions."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from advnas.costs.cost import Cost, describe
from advnas.costs.observation import Example, observe
from advnas.space import SearchSpace
from advnas.structure import ALWAYS, Condition, covering, places_of


def multiply_adds(space: SearchSpace, example: Example) -> Cost:
    """Count the multiply-adds of every operation on its real inputs; exact for every architecture of the space.

    Counted is what `torch.utils.flop_counter` knows, half of its floating point operations: matrix multiplications
    and convolutions, also those of attention, transformer layers and recurrent layers. It takes everything else for
    nothing: normalisations, activations, additions and other work per element, products with or of vectors
    (`torch.mv`, `torch.dot`), `nn.Bilinear` and `torch.cdist`.

    Args:
        space: a few architectures run once on the example, so that every operation is seen.
        example: what the network is called with, a tensor, a tuple of all arguments, or `Arguments`. The counts are
            of this whole batch: take a batch of 1 for the usual number.

    Raises:
        ValueError: what an operation costs depends on the other operations.
    """
    found: dict[Condition, float] = {}
    for architecture in covering(space):
        with _in_single_products(), FlopCounterMode(display=False) as counter:
            seen = observe(space, architecture, example, counter.get_total_flops)
        for condition, flops in seen.items():
            if found.setdefault(condition, flops / 2) != flops / 2:
                raise ValueError(
                    f"The multiply-adds of {describe(condition)} depend on the other operations: "
                    f"{found[condition]:,.0f} in one architecture and {flops / 2:,.0f} in another. Write "
                    "costs.table(space, {...}) with numbers of your own."
                )
    constant = found.pop(ALWAYS)
    return Cost("multiply_adds", "", constant, {place: found.get(place, 0.0) for place in places_of(space)})


@contextmanager
def _in_single_products() -> Iterator[None]:
    """Let layers compute by products that the counter knows, not by kernels for whole layers, which it counts as 0.

    Such are those of attention and transformer encoders in evaluation mode, and of recurrent layers.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    libraries: tuple[Any, ...] = (torch.backends.mkldnn, torch.backends.cudnn)
    enabled = [library.enabled for library in libraries]
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        for library in libraries:
            library.enabled = False
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for library, before in zip(libraries, enabled, strict=True):
            library.enabled = before
