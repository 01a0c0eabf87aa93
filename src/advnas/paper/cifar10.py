"""The NAS-Bench-201 cell on CIFAR-10: the paper's main study."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from advnas.arguments import check_count
from advnas.paper.image_search import ImageSearch, ImageSearchSettings
from advnas.spaces.nasbench201 import ConvolutionCellNetwork
from advnas.studies.study import Comparison
from advnas.tasks import cifar10
from advnas.tasks.image_stream import Images


@dataclass(frozen=True, kw_only=True)
class Cifar10Settings(ImageSearchSettings):
    """Everything that decides the outcome. The defaults are the paper's (appendix).

    zero: whether `none` is among the operations. The others: see `ImageSearchSettings`.
    """

    zero: bool = False
    channels: int = 16
    cells: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("channels", "cells"):
            check_count(name, getattr(self, name))


# The smaller studies keep the paper's alternation, half of it warm-up. They have far fewer steps, so theta needs a
# larger learning rate to settle at all; docs/results/cifar10.md says how it was chosen.
_LAPTOP = Cifar10Settings(
    channels=8, cells=1, images=6_400, epochs=24, warmup=12, theta_rate=0.05, controller_rate=3.5e-3, records=2
)
_QUICK = replace(_LAPTOP, channels=4, images=256, epochs=4, warmup=2)
PRESETS = {"quick": _QUICK, "laptop": _LAPTOP, "paper": Cifar10Settings()}
SEEDS = {"quick": 1, "laptop": 3, "paper": 3}
STRATEGIES = (
    "reinforce",
    "enas",
    "parsec",
    "proxyless",
    "gdas",
    "advantage",
    "contrast",
    "random",
    "ranked_random",
)


@dataclass(frozen=True)
class Cifar10(ImageSearch):
    """The study as something that can be run, run by run. data_folder: where the images lie."""

    settings: Cifar10Settings

    name: ClassVar[str] = "cifar10"
    title: ClassVar[str] = "cifar10"
    table: ClassVar[str] = "nasbench201"

    def make_network(self) -> ConvolutionCellNetwork:
        """Build the network of NAS-Bench-201."""
        settings = self.settings
        return ConvolutionCellNetwork(channels=settings.channels, cells=settings.cells, zero=settings.zero)

    def read_images(self) -> Images:
        """Read all training images."""
        return cifar10.read_once(self.data_folder, "train")

    def procedure(self) -> dict[str, str]:
        """Say in words what the settings do not."""
        augmentation = "flips, and crops after a border of 4 pixels, on both halves"
        return self.settings.procedure() | {"augmentation": augmentation}


def comparison(preset: str, data_folder: Path, *, zero: bool = False) -> Comparison:
    """The study of a preset; see `Cifar10Settings`."""
    return Comparison(Cifar10(replace(PRESETS[preset], zero=zero), data_folder), STRATEGIES, SEEDS[preset])
