"""The NAS-Bench-Macro network: a chain of eight layers, each a decision between three operations."""

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from advnas.choice import Choice

OPERATIONS = ("identity", "bottleneck_3x3_e3", "bottleneck_5x5_e6")
"""In the order of the digits 0, 1 and 2 of the benchmark's architecture strings."""
STAGES = (2, 3, 3)
"""Layers; the first of each stage halves the resolution and doubles the channels."""

MakeCandidates = Callable[[int, int, int], Mapping[str, nn.Module]]
"""From input channels, output channels and stride."""


class Bottleneck(nn.Module):
    """The inverted bottleneck of MobileNetV2 with ReLU, plus its input where the shape stays.

    The input is added here and not beside the decision: the decision is between whole blocks.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, *, kernel: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        self.body = nn.Sequential(
            nn.Conv2d(inputs, hidden, 1, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU(inplace=True),
            nn.Conv2d(hidden, hidden, kernel, stride, kernel // 2, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU(inplace=True),
            nn.Conv2d(hidden, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self._residual = stride == 1 and inputs == outputs

    @property
    def last_norm(self) -> nn.Module | None:
        """Where a gate can live at no cost; not where the input is added behind the norm."""
        return None if self._residual else self.body[-1]

    def forward(self, x: Tensor) -> Tensor:
        """[batch, inputs, height, width] to [batch, outputs, height / stride, width / stride]."""
        output: Tensor = self.body(x)
        return x + output if self._residual else output


def nasbench_macro_candidates(inputs: int, outputs: int, stride: int) -> dict[str, nn.Module]:
    """The benchmark's operations, in its own order."""
    same = stride == 1 and inputs == outputs
    projection = (nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
    blocks = (
        nn.Identity() if same else nn.Sequential(*projection),
        Bottleneck(inputs, outputs, stride, kernel=3, expansion=3),
        Bottleneck(inputs, outputs, stride, kernel=5, expansion=6),
    )
    return dict(zip(OPERATIONS, blocks, strict=True))


class LayerChainNetwork(nn.Module):
    """Stem, three stages of 2, 3 and 3 layers, a 1x1 convolution, pooling, classifier; all norms are affine.

    inputs: channels of the images. width: channels of the stem, 32 in the benchmark; the stages have 2, 4 and 8
    times as many. head: channels of the last convolution. candidates: makes the operations of a layer from its
    input channels, output channels and stride, instead of the benchmark's.
    """

    def __init__(
        self,
        *,
        inputs: int = 3,
        width: int = 32,
        head: int = 1280,
        classes: int = 10,
        candidates: MakeCandidates = nasbench_macro_candidates,
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(inputs, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)
        )
        self.layers = nn.Sequential()
        channels = width
        for count in STAGES:
            for stride in [2] + [1] * (count - 1):
                outputs = stride * channels
                self.layers.append(Choice(candidates(channels, outputs, stride), name=f"layer {len(self.layers)}"))
                channels = outputs
        self.last = nn.Sequential(
            nn.Conv2d(channels, head, 1, bias=False), nn.BatchNorm2d(head), nn.ReLU(inplace=True)
        )
        self.classifier = nn.Linear(head, classes)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, inputs, height, width] to [batch, classes]."""
        features = self.last(self.layers(self.stem(x)))
        return self.classifier(features.mean((2, 3)))  # type: ignore[no-any-return]


def build(*, inputs: int = 3, width: int = 32, head: int = 1280, classes: int = 10) -> LayerChainNetwork:
    """Build the network.

    Args:
        inputs: channels of the images.
        width: channels of the stem; the stages have 2, 4 and 8 times as many.
        head: channels of the last convolution.
        classes: how many there are to tell apart.

    Returns:
        The network, with norms that learn, so that what is derived can be trained as it is.
    """
    return LayerChainNetwork(inputs=inputs, width=width, head=head, classes=classes)
