"""The NAS-Bench-201 cell on CIFAR-10: the paper's main study."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from advnas.arguments import check_count
from advnas.paper import image_search
from advnas.paper.image_search import ImageSearchSettings
from advnas.randomness import seed_of, seeded
from advnas.search import Length, Search, TwoStreams
from advnas.spaces.nasbench201 import ConvolutionCellNetwork
from advnas.strategies import Answer
from advnas.studies.study import Comparison, Taken, answer_of
from advnas.tasks import cifar10


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
class Cifar10:
    """The study as something that can be run, run by run. data_folder: where the images lie."""

    settings: Cifar10Settings
    data_folder: Path

    name: ClassVar[str] = "cifar10"
    title: ClassVar[str] = "cifar10"
    table: ClassVar[str] = "nasbench201"

    @property
    def length(self) -> Length:
        """How long a search is."""
        return self.settings.length

    def procedure(self) -> dict[str, str]:
        """What the settings do not say, in words."""
        augmentation = "flips, and crops after a border of 4 pixels, on both halves"
        return self.settings.procedure() | {"augmentation": augmentation}

    def check(self, strategy: str, seed: int) -> None:
        """The images must be there and be the right ones."""
        cifar10.parts(self.data_folder, self.settings.images)

    def begin(self, strategy: str, seed: int) -> tuple[Search, TwoStreams]:
        """A search at its beginning, and both halves of the data."""
        return self.make_search(strategy, seed), self.make_data(seed)

    def answer_of(self, strategy: str) -> Answer:
        """As the settings ask for, or as the strategy says."""
        return answer_of(strategy, self.settings.answer)

    def make_search(self, strategy: str, seed: int) -> Search:
        """A search of the network, with weights that depend on the seed alone."""
        settings = self.settings
        with seeded(seed_of(seed)):
            network = ConvolutionCellNetwork(channels=settings.channels, cells=settings.cells, zero=settings.zero)
        return image_search.make_search(network, settings.strategy(strategy), seed, settings)

    def make_data(self, seed: int) -> TwoStreams:
        """Both halves, in an order and with an augmentation of the seed's own."""
        images = cifar10.read_once(self.data_folder, "train")
        return image_search.make_data(images, self.data_folder, seed, self.settings)

    def evaluate(self, answer: Taken, seed: int, search: Search, folder: Path) -> dict[str, Any]:
        """Nothing to do: the benchmark's table knows every cell."""
        return {}


def comparison(preset: str, data_folder: Path, *, zero: bool = False) -> Comparison:
    """The study of a preset; see `Cifar10Settings`."""
    return Comparison(Cifar10(replace(PRESETS[preset], zero=zero), data_folder), STRATEGIES, SEEDS[preset])
