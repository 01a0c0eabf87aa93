"""The NAS-Bench-Macro network on CIFAR-10: a study of choices in series that a table of real trainings judges."""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

from advnas.arguments import check_count
from advnas.paper.image_search import ImageSearch, ImageSearchSettings
from advnas.spaces.nasbench_macro import LayerChainNetwork
from advnas.studies.study import Comparison
from advnas.tasks import cifar10
from advnas.tasks.image_stream import Images

_SIDES = (32, 16)


@dataclass(frozen=True, kw_only=True)
class MacroSettings(ImageSearchSettings):
    """Everything that decides the outcome. The defaults are the benchmark's network and the paper's search.

    width: channels of the stem. head: channels of the last convolution. side: of the images, in pixels; 16 are
    averages of 2 x 2. The others: see `ImageSearchSettings`.
    """

    width: int = 32
    head: int = 1280
    side: int = 32
    clip: float = 5.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("width", "head"):
            check_count(name, getattr(self, name))
        if self.side not in _SIDES:
            raise ValueError(f"Images of CIFAR-10 are of 32 pixels, or 16 by averages; got side={self.side!r}.")


# With the paper's weight decay of theta half of the layers stay undecided in six epochs: contrast ends with an
# entropy of 0.74 of 1.10 (seed 900, not a reported one), and of 0.19 without it. So the smaller studies have none.
_LAPTOP = MacroSettings(
    width=8,
    head=128,
    side=16,
    images=12_800,
    epochs=12,
    warmup=6,
    theta_rate=0.05,
    theta_decay=0.0,
    controller_rate=3.5e-3,
    records=2,
)
_QUICK = replace(_LAPTOP, width=4, head=16, images=256, epochs=4, warmup=2)
PRESETS = {"quick": _QUICK, "laptop": _LAPTOP, "full": MacroSettings()}
SEEDS = {"quick": 1, "laptop": 10, "full": 3}
STRATEGIES = (
    "reinforce",
    "enas",
    "parsec",
    "proxyless",
    "gdas",
    "advantage",
    "exact_advantage",
    "contrast",
    "exact_contrast",
    "random",
    "ranked_random",
)


@dataclass(frozen=True)
class Macro(ImageSearch):
    """The study as something that can be run, run by run. data_folder: where the images lie."""

    settings: MacroSettings

    name: ClassVar[str] = "macro"
    title: ClassVar[str] = "NAS-Bench-Macro"
    table: ClassVar[str] = "nasbench_macro"

    def make_network(self) -> LayerChainNetwork:
        """Build the network of NAS-Bench-Macro."""
        return LayerChainNetwork(width=self.settings.width, head=self.settings.head)

    def read_images(self) -> Images:
        """Read all training images, in the size of the study."""
        return _of_side(cifar10.read_once(self.data_folder, "train"), self.settings.side)

    def procedure(self) -> dict[str, str]:
        """Say in words what the settings do not."""
        border = f"flips, and crops after a border of {self.settings.side // 8} pixels, on both halves"
        return self.settings.procedure() | {"augmentation": border}


@lru_cache(maxsize=1)
def _of_side(images: Images, side: int) -> Images:
    return images if side == images.pixels.shape[-1] else images.halved()


def comparison(preset: str, data_folder: Path) -> Comparison:
    """The study of a preset; see `MacroSettings`."""
    return Comparison(Macro(PRESETS[preset], data_folder), STRATEGIES, SEEDS[preset])
