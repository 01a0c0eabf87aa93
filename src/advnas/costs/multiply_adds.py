"""The multiply-adds of an architecture: the products of its matrix multiplications and convolutions."""

from torch.utils.flop_counter import FlopCounterMode

from advnas.costs.cost import Cost, describe
from advnas.costs.observation import Example, observe
from advnas.space import SearchSpace
from advnas.structure import ALWAYS, Condition, covering, places_of


def multiply_adds(space: SearchSpace, example: Example) -> Cost:
    """Count the multiply-adds of every operation on its real inputs; exact for every architecture of the space.

    Counted is what `torch.utils.flop_counter` knows, half of its floating point operations: matrix multiplications,
    convolutions and attention; not normalisations, activations and additions.

    Args:
        space: a few architectures run once on the example, so that every operation is seen.
        example: what the network is called with, a tensor, a tuple of all arguments, or `Arguments`. The counts are
            of this whole batch: take a batch of 1 for the usual number.

    Raises:
        ValueError: what an operation costs depends on the other operations.
    """
    found: dict[Condition, float] = {}
    for architecture in covering(space):
        with FlopCounterMode(display=False) as counter:
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
