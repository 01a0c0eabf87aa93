"""The ProxylessNAS space: a mobile network whose inverted bottlenecks choose kernel size and expansion."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from torch import Tensor, nn

from advnas.choice import Choice, Zero
from advnas.spaces.nasbench201 import batch_norm

STAGES = ((24, 4, 2), (40, 4, 2), (80, 4, 2), (96, 4, 1), (192, 4, 2), (320, 1, 1))
"""Channels, layers, and the stride of the first layer: 21 layers, each a decision."""
SMALL_IMAGES = ((24, 4, 1), (40, 4, 2), (80, 4, 2), (96, 4, 1), (192, 4, 2), (320, 1, 1))
"""The same for images of 32 x 32; the stem should have stride 1 then too."""

MakeCandidates = Callable[[int, int, int], Mapping[str, nn.Module]]
"""From input channels, output channels and stride."""


def bottleneck(
    inputs: int, outputs: int, stride: int, *, kernel: int, expansion: float, affine: bool
) -> nn.Sequential:
    """The inverted bottleneck of MobileNetV2: widen, filter every channel by itself, narrow."""
    hidden = round(inputs * expansion)
    widen = [nn.Conv2d(inputs, hidden, 1, bias=False), batch_norm(hidden, affine=affine), nn.ReLU6()]
    return nn.Sequential(
        *(widen if expansion != 1 else ()),
        nn.Conv2d(hidden, hidden, kernel, stride, kernel // 2, groups=hidden, bias=False),
        batch_norm(hidden, affine=affine),
        nn.ReLU6(),
        nn.Conv2d(hidden, outputs, 1, bias=False),
        batch_norm(outputs, affine=affine),
    )


def mobile_candidates(
    inputs: int,
    outputs: int,
    stride: int,
    *,
    kernels: Sequence[int] = (3, 5, 7),
    expansions: Sequence[float] = (3, 6),
    zero: bool = True,
    affine: bool = False,
) -> dict[str, nn.Module]:
    """Every kernel size with every expansion, and the zero operation where a shortcut is left without it."""
    candidates: dict[str, nn.Module] = {
        f"mb{expansion:g}_{kernel}x{kernel}": bottleneck(
            inputs, outputs, stride, kernel=kernel, expansion=expansion, affine=affine
        )
        for expansion in expansions
        for kernel in kernels
    }
    if zero and has_shortcut(inputs, outputs, stride):
        candidates["zero"] = Zero()
    return candidates


def many_candidates(count: int, *, affine: bool = False) -> MakeCandidates:
    """Kernels 3 and 5 with count / 2 expansions, evenly from 3 to 6: more choice, the same cost on average."""
    if count < 4 or count % 2:
        raise ValueError(f"The number of candidates must be even and at least 4, got {count!r}.")
    steps = count // 2
    expansions = [3 + 3 * step / (steps - 1) for step in range(steps)]

    return partial(mobile_candidates, kernels=(3, 5), expansions=expansions, zero=False, affine=affine)


def has_shortcut(inputs: int, outputs: int, stride: int) -> bool:
    """Whether a layer adds its input to its output."""
    return stride == 1 and inputs == outputs


class Layer(nn.Module):
    """x + O(x) where the shapes allow it, O(x) elsewhere."""

    def __init__(self, operation: nn.Module, *, shortcut: bool) -> None:
        super().__init__()
        self.operation, self._shortcut = operation, shortcut

    def forward(self, x: Tensor) -> Tensor:
        """[batch, inputs, height, width] to [batch, outputs, height / stride, width / stride]."""
        output: Tensor = self.operation(x)
        return x + output if self._shortcut else output


class MobileNetwork(nn.Module):
    """Stem, a first bottleneck of 16 channels, one decision per layer, a last convolution, pooling, classifier.

    inputs: channels of the images. width: multiplies all channels, rounded to multiples of 8. stem_stride, stages:
    where resolution is lost, and how many layers of how many channels there are; for small images take
    stem_stride=1, stages=SMALL_IMAGES. zero: with the operation `zero`, by which a layer can be left out.
    affine: False for a search, True for the derived network. candidates: makes the operations of a layer from its
    input channels, output channels and stride, instead of the usual ones.
    """

    def __init__(
        self,
        *,
        inputs: int = 3,
        width: float = 1.0,
        classes: int = 1000,
        stem_stride: int = 2,
        stages: Sequence[tuple[int, int, int]] = STAGES,
        zero: bool = True,
        affine: bool = False,
        candidates: MakeCandidates | None = None,
    ) -> None:
        super().__init__()
        make = candidates or (lambda i, o, stride: mobile_candidates(i, o, stride, zero=zero, affine=affine))
        first, channels, last = (_rounded(count) for count in (32 * width, 16 * width, 1280 * max(1.0, width)))
        self.stem = nn.Sequential(
            nn.Conv2d(inputs, first, 3, stem_stride, padding=1, bias=False),
            batch_norm(first, affine=affine),
            nn.ReLU6(),
            bottleneck(first, channels, 1, kernel=3, expansion=1, affine=affine),
        )
        self.layers = nn.Sequential()
        for outputs, count, stride in stages:
            outputs = _rounded(width * outputs)
            for strided in [stride] + [1] * (count - 1):
                choice = Choice(make(channels, outputs, strided), name=f"layer {len(self.layers)}")
                self.layers.append(Layer(choice, shortcut=has_shortcut(channels, outputs, strided)))
                channels = outputs
        self.last = nn.Sequential(
            nn.Conv2d(channels, last, 1, bias=False), batch_norm(last, affine=affine), nn.ReLU6()
        )
        self.classifier = nn.Linear(last, classes)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, inputs, height, width] to [batch, classes]."""
        features = self.last(self.layers(self.stem(x)))
        return self.classifier(features.mean((2, 3)))  # type: ignore[no-any-return]


def build(*, inputs: int = 3, channels: int = 16, classes: int = 10, zero: bool = True) -> MobileNetwork:
    """Build the network for small images, with norms that learn.

    channels: of the first bottleneck, 16 in the original; all others follow in proportion.
    """
    return MobileNetwork(
        inputs=inputs,
        width=channels / 16,
        classes=classes,
        stem_stride=1,
        stages=SMALL_IMAGES,
        zero=zero,
        affine=True,
    )


def _rounded(channels: float) -> int:
    """To a multiple of 8, never by more than a tenth down: the rule of the mobile networks."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * channels else nearest + 8
