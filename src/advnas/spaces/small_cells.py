"""The NAS-Bench-201 cell in a small network that leans on it."""

from torch import Tensor, nn

from advnas.spaces.nasbench201 import Cell, nasbench201_candidates


class SmallCellNetwork(nn.Module):
    """The same cell where little else sees shapes: a 1x1 stem, three cells with poolings in between, classifier.

    What a cell cannot do nobody does for it, so its operations matter more than in the benchmark's network, whose
    reductions are residual blocks. Arguments as there.
    """

    def __init__(
        self, *, inputs: int = 1, channels: int = 8, classes: int = 10, zero: bool = False, affine: bool = False
    ) -> None:
        super().__init__()

        def cell() -> Cell:
            return Cell(channels, lambda width: nasbench201_candidates(width, zero=zero, affine=affine))

        self.stem = nn.Sequential(nn.Conv2d(inputs, channels, 1, bias=False), nn.BatchNorm2d(channels))
        self.body = nn.Sequential(cell(), nn.AvgPool2d(2), cell(), nn.AvgPool2d(2), cell())
        self.last = nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(inplace=True))
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, inputs, height, width] to [batch, classes]."""
        features = self.last(self.body(self.stem(x)))
        return self.classifier(features.mean((2, 3)))  # type: ignore[no-any-return]


def build(*, inputs: int = 1, channels: int = 8, classes: int = 10, zero: bool = True) -> SmallCellNetwork:
    """Build the network with norms that learn, so that what is derived can be trained as it is."""
    return SmallCellNetwork(inputs=inputs, channels=channels, classes=classes, zero=zero, affine=True)
