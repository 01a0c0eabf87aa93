"""The NAS-Bench-201 network: stacked cells that share one decision per edge."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import _SingleLevelFunction
from torch.nn import functional as F

from advnas.choice import Choice, Zero

NODES = 4
EDGES = tuple((source, target) for target in range(1, NODES) for source in range(target))
"""(0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3): the order of the benchmark's architecture strings."""

# Edges that leave one node run in a row, so that they can share its ReLU.
_BY_SOURCE = sorted(range(len(EDGES)), key=lambda index: EDGES[index])

MakeCandidates = Callable[[int], Mapping[str, nn.Module]]


class ReLUConv(nn.Conv2d):
    """ReLU, then a convolution that divides height and width by its stride.

    While its weight is frozen, as in an architecture step, it keeps its own input for the backward pass, which
    others keep anyway (edges that leave the same node, a pooling beside it), instead of its own output of the ReLU.
    That output is made by `relu`, which a cell replaces by one that its edges share.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
        self.relu: Callable[[Tensor], Tensor] = _relu

    def forward(self, x: Tensor) -> Tensor:
        """[batch, inputs, height, width] to [batch, outputs, height / stride, width / stride]."""
        if x.requires_grad and torch.is_grad_enabled() and not self.weight.requires_grad:
            return _frozen_relu_conv(x, self.relu(x), self.weight, self.stride)
        return super().forward(F.relu(x))


class ReLUConvBN(nn.Sequential):
    """ReLU, convolution, BatchNorm; keeps height and width."""

    def __init__(self, channels: int, kernel: int, *, affine: bool) -> None:
        conv, norm = ReLUConv(channels, channels, kernel), batch_norm(channels, affine=affine)
        super().__init__(OrderedDict(conv=conv, norm=norm))


def _relu(x: Tensor) -> Tensor:
    return F.relu(x.detach())


class _FrozenReLUConv(_SingleLevelFunction):
    """conv(relu(x)) with a weight that needs no gradient; keeps x, not relu(x)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rectified: Tensor, weight: Tensor, stride: tuple[int, ...]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.stride = stride
        return F.conv2d(rectified, weight, None, stride, padding=weight.shape[-1] // 2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "A frozen convolution can be differentiated only once; do not use create_graph=True."
            )
        x, weight = ctx.saved_tensors
        kind, padding = gradient.dtype, (weight.shape[-1] // 2,) * 2
        # Its second argument stands for the input, of which only shape, layout and type matter here. Where autocast
        # was on, the gradient has less precision than what was kept.
        like, weight = x if x.dtype == kind else torch.empty_like(x, dtype=kind), weight.to(kind)
        wanted, _, _ = torch.ops.aten.convolution_backward(
            gradient, like, weight, None, ctx.stride, padding, (1, 1), False, (0, 0), 1, (True, False, False)
        )
        wanted = wanted.to(x.dtype)
        return torch.ops.aten.threshold_backward.grad_input(wanted, x, 0, grad_input=wanted), None, None, None


# Without the Python layer of torch.autograd.Function for torch.func transforms.
_frozen_relu_conv: Callable[..., Tensor] = _FrozenReLUConv.apply  # type: ignore[attr-defined]


class SharedReLU:
    """relu(x) without a graph, computed once for all the edges that leave a node; they run one after the other."""

    def __init__(self) -> None:
        self._last: tuple[Tensor, int, Tensor] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Return the last result again, if x is the same tensor and was not changed since."""
        last = self._last
        if last is None or last[0] is not x or last[1] != x._version:
            last = self._last = (x, x._version, F.relu(x.detach()))
        return last[2]

    def forget(self) -> None:
        """Let go of both tensors."""
        self._last = None


def batch_norm(channels: int, *, affine: bool) -> nn.BatchNorm2d:
    """In a search (not affine) with the statistics of the batch, as shared weights have no others."""
    return nn.BatchNorm2d(channels, affine=affine, track_running_stats=affine)


def nasbench201_candidates(channels: int, *, zero: bool = False, affine: bool = False) -> dict[str, nn.Module]:
    """The benchmark's operations, in its own order and under its own names."""
    none: dict[str, nn.Module] = {"none": Zero()} if zero else {}
    return none | {
        "skip_connect": nn.Identity(),
        "nor_conv_1x1": ReLUConvBN(channels, 1, affine=affine),
        "nor_conv_3x3": ReLUConvBN(channels, 3, affine=affine),
        "avg_pool_3x3": nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False),
    }


class Cell(nn.Module):
    """x_l = sum over k < l of O_kl(x_k), for three nodes after the input; returns the last."""

    def __init__(self, channels: int, candidates: MakeCandidates) -> None:
        super().__init__()
        self.edges = nn.ModuleList(
            Choice(candidates(channels), name=f"{source}->{target}", edge=(str(source), str(target)))
            for source, target in EDGES
        )
        self._relu = SharedReLU()
        for part in self.modules():
            if isinstance(part, ReLUConv):
                part.relu = self._relu

    def forward(self, x: Tensor) -> Tensor:
        """[batch, channels, height, width] to the same."""
        nodes = {0: x}
        for index in _BY_SOURCE:
            source, target = EDGES[index]
            output = self.edges[index](nodes[source])
            nodes[target] = nodes[target] + output if target in nodes else output
        self._relu.forget()
        return nodes[NODES - 1]


class Reduction(nn.Module):
    """The benchmark's residual block between stages: half the resolution, twice the channels."""

    def __init__(self, channels: int, *, affine: bool) -> None:
        super().__init__()
        wide = 2 * channels
        self.body = nn.Sequential(
            nn.Identity(),  # as in the benchmark, where the ReLU has a number too: weights keep their names
            ReLUConv(channels, wide, 3, stride=2),
            batch_norm(wide, affine=affine),
            nn.Identity(),
            ReLUConv(wide, wide, 3),
            batch_norm(wide, affine=affine),
        )
        self.shortcut = nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(channels, wide, 1, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        """[batch, channels, height, width] to [batch, 2 channels, height / 2, width / 2]."""
        return self.body(x) + self.shortcut(x)  # type: ignore[no-any-return]


class ConvolutionCellNetwork(nn.Module):
    """Stem, three stages of `cells` equal cells with reductions in between, BN-ReLU, pooling, classifier.

    inputs: channels of the images. channels: of the first stage. candidates: makes the operations of an edge for a
    number of channels; the default is NAS-Bench-201's four, or five with `zero`. affine: False for a search, True
    for the derived network, whose parameters are then those of the benchmark.
    """

    def __init__(
        self,
        *,
        inputs: int = 3,
        channels: int = 16,
        cells: int = 5,
        classes: int = 10,
        zero: bool = False,
        affine: bool = False,
        candidates: MakeCandidates | None = None,
    ) -> None:
        super().__init__()
        make = candidates or (lambda width: nasbench201_candidates(width, zero=zero, affine=affine))
        self.stem = nn.Sequential(nn.Conv2d(inputs, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels))
        self.body = nn.Sequential(
            *(Cell(channels, make) for _ in range(cells)),
            Reduction(channels, affine=affine),
            *(Cell(2 * channels, make) for _ in range(cells)),
            Reduction(2 * channels, affine=affine),
            *(Cell(4 * channels, make) for _ in range(cells)),
        )
        self.last = nn.Sequential(nn.BatchNorm2d(4 * channels), nn.ReLU(inplace=True))
        self.classifier = nn.Linear(4 * channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, inputs, height, width] to [batch, classes]."""
        features = self.last(self.body(self.stem(x)))
        return self.classifier(features.mean((2, 3)))  # type: ignore[no-any-return]


def build(
    *, inputs: int = 3, channels: int = 16, cells: int = 1, classes: int = 10, zero: bool = True
) -> ConvolutionCellNetwork:
    """Build the network with norms that learn, so that what is derived can be trained as it is."""
    return ConvolutionCellNetwork(
        inputs=inputs, channels=channels, cells=cells, classes=classes, zero=zero, affine=True
    )
