"""The DARTS network for CIFAR: normal and reduction cells of 14 edges, and a rule that keeps two edges per node."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from advnas.architecture import Architecture
from advnas.choice import Choice, Zero
from advnas.spaces.nasbench201 import batch_norm

NODES = 4
INPUTS = 2
EDGES = tuple((source, target) for target in range(INPUTS, INPUTS + NODES) for source in range(target))
"""(0, 2), (1, 2), (0, 3), ... (4, 5): nodes 0 and 1 are the outputs of the two cells before, 2 to 5 are sums."""
KINDS = ("normal", "reduction")

MakeCandidates = Callable[[int, int], Mapping[str, nn.Module]]
"""From a number of channels and a stride."""


def decision(kind: str, source: int, target: int) -> str:
    """The name of an edge's decision."""
    return f"{kind} {source}->{target}"


class FactorizedReduce(nn.Module):
    """Half the resolution without losing a pixel's neighbour: two 1x1 convolutions of stride 2, one pixel apart."""

    def __init__(self, inputs: int, outputs: int, *, affine: bool) -> None:
        super().__init__()
        self.even = nn.Conv2d(inputs, outputs // 2, 1, stride=2, bias=False)
        self.odd = nn.Conv2d(inputs, outputs - outputs // 2, 1, stride=2, bias=False)
        self.norm = batch_norm(outputs, affine=affine)

    @property
    def last_norm(self) -> nn.BatchNorm2d:
        """Where a gate can live at no cost."""
        return self.norm

    def forward(self, x: Tensor) -> Tensor:
        """[batch, inputs, height, width] to [batch, outputs, height / 2, width / 2]."""
        x = torch.relu(x)
        return self.norm(torch.cat([self.even(x), self.odd(x[:, :, 1:, 1:])], 1))  # type: ignore[no-any-return]


def relu_conv_norm(inputs: int, outputs: int, *, affine: bool) -> nn.Sequential:
    """What brings a cell's inputs to its number of channels."""
    conv = nn.Conv2d(inputs, outputs, 1, bias=False)
    return nn.Sequential(nn.ReLU(), conv, batch_norm(outputs, affine=affine))


def depthwise(channels: int, kernel: int, stride: int, *, dilation: int = 1, affine: bool) -> nn.Sequential:
    """ReLU, one filter per channel, a 1x1 convolution, BatchNorm."""
    padding = dilation * (kernel // 2)
    return nn.Sequential(
        nn.ReLU(),
        nn.Conv2d(channels, channels, kernel, stride, padding, dilation, groups=channels, bias=False),
        nn.Conv2d(channels, channels, 1, bias=False),
        batch_norm(channels, affine=affine),
    )


def separable(channels: int, kernel: int, stride: int, *, affine: bool) -> nn.Sequential:
    """The separable convolution of DARTS: twice the same, the first with the stride."""
    parts = (depthwise(channels, kernel, s, affine=affine) for s in (stride, 1))
    return nn.Sequential(*(layer for part in parts for layer in part))


def pooling(pool: nn.Module, channels: int, *, affine: bool) -> nn.Module:
    """In a search a BatchNorm follows, so that an edge's size does not depend on its operation; later none does."""
    return pool if affine else nn.Sequential(pool, batch_norm(channels, affine=False))


def darts_candidates(
    channels: int, stride: int, *, zero: bool = True, affine: bool = False
) -> dict[str, nn.Module]:
    """The operations of DARTS, in its own order and under its own names; seven without the zero operation."""
    skip = nn.Identity() if stride == 1 else FactorizedReduce(channels, channels, affine=affine)
    average = nn.AvgPool2d(3, stride, padding=1, count_include_pad=False)
    none: dict[str, nn.Module] = {"none": Zero(stride)} if zero else {}
    return none | {
        "max_pool_3x3": pooling(nn.MaxPool2d(3, stride, padding=1), channels, affine=affine),
        "avg_pool_3x3": pooling(average, channels, affine=affine),
        "skip_connect": skip,
        "sep_conv_3x3": separable(channels, 3, stride, affine=affine),
        "sep_conv_5x5": separable(channels, 5, stride, affine=affine),
        "dil_conv_3x3": depthwise(channels, 3, stride, dilation=2, affine=affine),
        "dil_conv_5x5": depthwise(channels, 5, stride, dilation=2, affine=affine),
    }


class Cell(nn.Module):
    """x_l = sum over k < l of O_kl(x_k) for four nodes after the two inputs; returns the four side by side.

    before: channels of the two cells before. after_reduction: the cell before the last has twice the resolution.
    """

    def __init__(
        self,
        before: tuple[int, int],
        channels: int,
        *,
        reduction: bool,
        after_reduction: bool,
        candidates: MakeCandidates,
        affine: bool,
    ) -> None:
        super().__init__()
        adapt = FactorizedReduce if after_reduction else relu_conv_norm
        self.adapt = nn.ModuleList(
            [adapt(before[0], channels, affine=affine), relu_conv_norm(before[1], channels, affine=affine)]
        )
        kind = KINDS[reduction]
        self.edges = nn.ModuleList(
            Choice(
                candidates(channels, 2 if reduction and source < INPUTS else 1), name=decision(kind, source, target)
            )
            for source, target in EDGES
        )

    def forward(self, before_last: Tensor, last: Tensor) -> Tensor:
        """Two inputs to [batch, 4 channels, height, width], or half of height and width."""
        nodes: dict[int, Tensor] = {0: self.adapt[0](before_last), 1: self.adapt[1](last)}
        for (source, target), edge in zip(EDGES, self.edges, strict=True):
            output = edge(nodes[source])
            nodes[target] = nodes[target] + output if target in nodes else output
        return torch.cat([nodes[node] for node in range(INPUTS, INPUTS + NODES)], 1)


class DartsNetwork(nn.Module):
    """Stem, `cells` cells of which two reduce, at a third and at two thirds, pooling, classifier.

    inputs: channels of the images. channels: of the first cells' nodes. The defaults are those of the search; the
    published networks have 36 channels and 20 cells.
    zero: with the operation `none`, eight instead of seven. affine: False for a search, True for the derived
    network. candidates: makes the operations of an edge from its channels and stride, instead of the usual ones.
    Height and width must be divisible by 4.
    """

    def __init__(
        self,
        *,
        inputs: int = 3,
        channels: int = 16,
        cells: int = 8,
        classes: int = 10,
        zero: bool = True,
        affine: bool = False,
        candidates: MakeCandidates | None = None,
    ) -> None:
        super().__init__()
        make = candidates or (lambda width, stride: darts_candidates(width, stride, zero=zero, affine=affine))
        wide = 3 * channels
        self.stem = nn.Sequential(nn.Conv2d(inputs, wide, 3, padding=1, bias=False), nn.BatchNorm2d(wide))
        before, width, reduced = (wide, wide), channels, False
        self.cells = nn.ModuleList()
        for number in range(cells):
            reduction = number in (cells // 3, 2 * cells // 3)
            width *= 1 + reduction
            self.cells.append(
                Cell(before, width, reduction=reduction, after_reduction=reduced, candidates=make, affine=affine)
            )
            before, reduced = (before[1], NODES * width), reduction
        self.classifier = nn.Linear(before[1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, inputs, height, width] to [batch, classes]."""
        before_last = last = self.stem(x)
        for cell in self.cells:
            before_last, last = last, cell(before_last, last)
        return self.classifier(last.mean((2, 3)))  # type: ignore[no-any-return]


def build(
    *, inputs: int = 3, channels: int = 16, cells: int = 1, classes: int = 10, zero: bool = True
) -> DartsNetwork:
    """Build the network with norms that learn, so that what is derived can be trained as it is.

    cells: between the two that reduce, and as many before and after them.
    """
    return DartsNetwork(
        inputs=inputs, channels=channels, cells=3 * cells + 2, classes=classes, zero=zero, affine=True
    )


def top_two(probabilities: Mapping[str, Mapping[str, float]]) -> Architecture:
    """DARTS' own way to derive a cell: every node keeps the two incoming edges with the strongest operations.

    An edge is as strong as its most likely operation other than `none`. All other edges become `none`, so the
    architecture can be run by a network with the zero operation.

        network = search.derive(top_two(search.probabilities()))
    """
    strongest = {
        name: max(((p, operation) for operation, p in row.items() if operation != "none"), key=lambda pair: pair[0])
        for name, row in probabilities.items()
    }
    operations = dict.fromkeys(probabilities, "none")
    for kind in KINDS:
        for target in range(INPUTS, INPUTS + NODES):
            edges = [decision(kind, source, target) for source in range(target)]
            for edge in sorted(edges, key=lambda name: -strongest[name][0])[:2]:
                operations[edge] = strongest[edge][1]
    return Architecture(operations)


def from_genotype(normal: Sequence[tuple[str, int]], reduction: Sequence[tuple[str, int]]) -> Architecture:
    """An architecture as papers print it: two (operation, source) pairs for every node, cell by cell."""
    operations = {decision(kind, source, target): "none" for kind in KINDS for source, target in EDGES}
    for kind, pairs in zip(KINDS, (normal, reduction), strict=True):
        for position, (operation, source) in enumerate(pairs):
            operations[decision(kind, source, INPUTS + position // 2)] = operation
    return Architecture(operations)


DARTS_V1 = from_genotype(
    normal=[
        ("sep_conv_3x3", 1),
        ("sep_conv_3x3", 0),
        ("skip_connect", 0),
        ("sep_conv_3x3", 1),
        ("skip_connect", 0),
        ("sep_conv_3x3", 1),
        ("sep_conv_3x3", 0),
        ("skip_connect", 2),
    ],
    reduction=[
        ("max_pool_3x3", 0),
        ("max_pool_3x3", 1),
        ("skip_connect", 2),
        ("max_pool_3x3", 0),
        ("max_pool_3x3", 0),
        ("skip_connect", 2),
        ("skip_connect", 2),
        ("avg_pool_3x3", 0),
    ],
)
"""Found by DARTS, first order (Liu et al., ICLR 2019)."""

DARTS_V2 = from_genotype(
    normal=[
        ("sep_conv_3x3", 0),
        ("sep_conv_3x3", 1),
        ("sep_conv_3x3", 0),
        ("sep_conv_3x3", 1),
        ("sep_conv_3x3", 1),
        ("skip_connect", 0),
        ("skip_connect", 0),
        ("dil_conv_3x3", 2),
    ],
    reduction=[
        ("max_pool_3x3", 0),
        ("max_pool_3x3", 1),
        ("skip_connect", 2),
        ("max_pool_3x3", 1),
        ("max_pool_3x3", 0),
        ("skip_connect", 2),
        ("skip_connect", 2),
        ("max_pool_3x3", 1),
    ],
)
"""Found by DARTS, second order."""
