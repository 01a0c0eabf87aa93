"""The toy regression network: parallel filters whose responses are read out and averaged."""

import math

import torch
from torch import Tensor, nn

from advnas.choice import Choice
from advnas.randomness import generator

SIDE, FILTER, STRIDE = 13, 7, 2
MAP = (SIDE - FILTER) // STRIDE + 1  # a filter's response is MAP x MAP, and a readout covers all of it


class ToyRegression(nn.Module):
    """y = mean over i of readout_i(O_i(x)),   O_ij = tanh(7x7 convolution with stride 2).

    decisions: intermediate nodes, each with one edge from the input. candidates: filters to choose from there.
    Maps [batch, 1, 13, 13] to [batch]. The weights come from `generator` (see `random_weights`).
    """

    def __init__(self, decisions: int = 10, candidates: int = 10, *, generator: torch.Generator) -> None:
        super().__init__()
        filters, readouts = random_weights(decisions, candidates, generator)
        self.edges = nn.ModuleList(Choice(_named(row)) for row in filters)
        self.readouts = nn.ModuleList(_fixed(readout, stride=1) for readout in readouts)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, 1, 13, 13] to [batch]."""
        responses = [readout(edge(x)) for edge, readout in zip(self.edges, self.readouts, strict=True)]
        return torch.stack(responses).mean(0).flatten()


def build(*, decisions: int = 10, candidates: int = 10, seed: int = 0) -> ToyRegression:
    """Build the network with the filters and readouts of a seed."""
    return ToyRegression(decisions, candidates, generator=generator(seed))


def random_weights(decisions: int, candidates: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Filters [decisions, candidates, 7, 7] and readouts [decisions, 4, 4], normal with variance 1 / fan-in.

    The paper says "defined randomly"; this is the initialisation of its authors' released code, without biases.
    """
    filters = torch.randn(decisions, candidates, FILTER, FILTER, generator=generator) / FILTER
    readouts = torch.randn(decisions, MAP, MAP, generator=generator) / math.sqrt(MAP * MAP)
    return filters, readouts


def _named(filters: Tensor) -> dict[str, nn.Module]:
    return {f"filter_{j}": nn.Sequential(_fixed(kernel, STRIDE), nn.Tanh()) for j, kernel in enumerate(filters)}


def _fixed(kernel: Tensor, stride: int) -> nn.Conv2d:
    """A convolution that is not trained: teacher and student share their weights."""
    layer = nn.Conv2d(1, 1, kernel.shape[-1], stride=stride, bias=False)
    layer.weight = nn.Parameter(kernel[None, None].clone(), requires_grad=False)
    return layer
