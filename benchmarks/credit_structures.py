"""The networks of credit_direction.py and their data: small ones that can be enumerated, and three real parents."""

import itertools
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from advnas import Choice, Search, Zero, spaces
from advnas.paper import cifar10 as cifar10_study
from advnas.paper import ptb as ptb_study
from advnas.randomness import generator, seed_of, seeded
from advnas.search import PAPER_WEIGHTS, LossOf, OptimizerOf
from advnas.spaces.character_model import Attention, CausalConvolution
from advnas.spaces.nasbench201 import Cell, nasbench201_candidates
from advnas.tasks import cifar10, digits, penn_treebank
from advnas.tasks.data_folder import data_folder
from advnas.tasks.image_stream import ImageStream
from advnas.tasks.images import cross_entropy

Pairs = tuple[Tensor, Tensor]
Training = Callable[[Search], LossOf]


@dataclass(frozen=True)
class Parent:
    """What is trained and judged.

    search: at its beginning, with uniform theta; its first half trains the weights alone. training: the loss of the
    weight step that is due. judged: losses on a fixed set of minibatches, from which nothing is learnt; the reward
    is minus their mean. examples: of how many examples or tokens each of them is the mean.
    """

    search: Search
    training: Training
    judged: list[LossOf]
    examples: int

    def trained(self) -> "Parent":
        """Train the weights with uniform draws: the first half of a search."""
        while self.search.progress.in_warmup:
            self.search.weight_step(self.training(self.search))
        return self


@dataclass(frozen=True)
class Structure:
    """A network and its two ages.

    make: builds a parent from the epochs of its training and a seed. ages: epochs, few and many. downloads: whether
    its data must be there already.
    """

    title: str
    make: Callable[[int, int], Parent]
    ages: tuple[int, int]
    downloads: bool = False


def loss_on(batch: Pairs) -> LossOf:
    return lambda model: cross_entropy(model, batch)


# Networks for the digits


class Skipped(nn.Module):
    """x + body(x)."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)  # type: ignore[no-any-return]


def convolution(inputs: int, outputs: int, kernel: int, *, groups: int = 1) -> nn.Sequential:
    layer = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.ReLU())


def layers(channels: int) -> dict[str, nn.Module]:
    """Make the operations that all digit networks but the cell choose from, besides doing nothing."""
    return {
        "conv3": convolution(channels, channels, 3),
        "conv1": convolution(channels, channels, 1),
        "depthwise": convolution(channels, channels, 3, groups=channels),
        "pool": nn.AvgPool2d(3, stride=1, padding=1),
    }


def digit_network(place: Callable[[], nn.Module], places: int = 4, channels: int = 8) -> nn.Module:
    """Put a stem in front of the places, one pooling halfway, and a classifier behind them."""
    half = [place() for _ in range(places // 2)], [place() for _ in range(places - places // 2)]
    stem, pooling = convolution(1, channels, 3), nn.MaxPool2d(2)
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)
    return nn.Sequential(stem, *half[0], pooling, *half[1], *head)


def chain() -> nn.Module:
    return digit_network(lambda: Choice(layers(8) | {"skip": nn.Identity()}))


def blocks() -> nn.Module:
    def place() -> Choice:
        candidates: Mapping[str, nn.Module] = {name: Skipped(layer) for name, layer in layers(8).items()}
        return Choice({**candidates, "skip": nn.Identity()})

    return digit_network(place)


def tied(decisions: int = 4) -> nn.Module:
    """Blocks in twelve places, of which every fourth is the same decision, each with weights of its own."""
    numbers = itertools.count()

    def place() -> Choice:
        candidates: Mapping[str, nn.Module] = {name: Skipped(layer) for name, layer in layers(8).items()}
        return Choice({**candidates, "skip": nn.Identity()}, name=f"block {next(numbers) % decisions}")

    return digit_network(place, places=3 * decisions)


def residual() -> nn.Module:
    return digit_network(lambda: Skipped(Choice(layers(8) | {"none": Zero()})))


def cell() -> nn.Module:
    return digit_network(lambda: Cell(8, lambda channels: nasbench201_candidates(channels, affine=True)), places=1)


def digit_parent(build: Callable[[], nn.Module], epochs: int, seed: int) -> Parent:
    """Train on 700 digits in minibatches of 32; judge on 5 minibatches of 100 others."""
    known = digits.read()
    images, labels = known.images[:1200], known.labels[:1200]
    per_epoch = 700 // 32

    def training(search: Search) -> LossOf:
        epoch, place = divmod(search.weight_steps, per_epoch)
        rows = torch.randperm(700, generator=generator(seed, epoch))[place * 32 : (place + 1) * 32]
        return loss_on((images[rows], labels[rows]))

    judged = [loss_on((images[rows], labels[rows])) for rows in torch.arange(700, 1200).view(5, 100)]
    return Parent(begin(build, epochs * per_epoch, seed), training, judged, 100)


def begin(build: Callable[[], nn.Module], steps: int, seed: int, optimizer: OptimizerOf = PAPER_WEIGHTS) -> Search:
    """Make a search whose first half are these steps."""
    with seeded(seed_of(seed)):
        network = build()
    return Search(network, "random", steps=2 * steps, warmup=steps, weight_optimizer=optimizer, seed=seed)


# A character model


class Transformer(nn.Module):
    """Pre-norm residual layers: x + choice(norm(x))."""

    def __init__(self, width: int = 32, layers: int = 4, context: int = 32) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(128, width), nn.Parameter(torch.zeros(context, width))
        self.body = nn.Sequential(*(self._layer(width) for _ in range(layers)))
        self.last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 128))

    @staticmethod
    def _layer(width: int) -> nn.Module:
        mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        convolutions = {f"conv{kernel}": CausalConvolution(width, kernel) for kernel in (3, 9)}
        choice = Choice({"attention": Attention(width), **convolutions, "mlp": mlp, "none": Zero()})
        return Skipped(nn.Sequential(nn.LayerNorm(width), choice))

    def forward(self, x: Tensor) -> Tensor:
        """[batch, time] to [batch, characters, time]."""
        return self.last(self.body(self.words(x) + self.places)).transpose(1, 2)  # type: ignore[no-any-return]


def standard_library() -> Tensor:
    """Read the sources of Python's standard library one after the other: ASCII codes, 0 for anything else."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = b"".join(file.read_bytes() for file in files)
    codes = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    return codes * (codes < 128)


def transformer_parent(epochs: int, seed: int) -> Parent:
    """Train on the first 2,000,000 characters, 100 minibatches of 32 x 32 per epoch; judge on what follows."""
    text, per_epoch = standard_library(), 100

    def minibatch(random: torch.Generator, first: int, last: int) -> LossOf:
        starts = torch.randint(first, last - 33, (32, 1), generator=random)
        piece = text[starts + torch.arange(33)]
        return loss_on((piece[:, :-1], piece[:, 1:]))

    def training(search: Search) -> LossOf:
        return minibatch(generator(seed, search.weight_steps), 0, 2_000_000)

    judged = [minibatch(generator(number), 2_000_000, len(text)) for number in range(5)]
    return Parent(
        begin(Transformer, epochs * per_epoch, seed, partial(torch.optim.Adam, lr=3e-3)), training, judged, 32 * 32
    )


# The first example of the README


def readme_network() -> nn.Module:
    mlp = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
    block = Choice({"skip": nn.Identity(), "linear": nn.Linear(32, 32), "mlp": mlp}, name="block")
    return nn.Sequential(nn.Linear(8, 32), block, nn.Linear(32, 2))


def readme_parent(epochs: int, seed: int) -> Parent:
    """Train on 16 minibatches of 64, judge on 16 others, as there."""
    x = torch.randn(2048, 8, generator=generator(seed))
    batches = list(zip(x.view(32, 64, 8), (x[:, 0] * x[:, 1] > 0).long().view(32, 64), strict=True))
    search = begin(readme_network, 16 * epochs, seed)
    judged = [loss_on(batch) for batch in batches[16:]]
    return Parent(search, lambda search: loss_on(batches[search.weight_steps % 16]), judged, 64)


# Real parents


def cifar10_losses(seed: int, judged: int = 4) -> tuple[Training, list[LossOf]]:
    """Images of 16 x 16: one half for the weights, some minibatches of the other half to judge by."""
    folder = data_folder(None)
    images, halves = cifar10.read_once(folder, "train"), cifar10.parts(folder, 6_400)
    weights, theta = (ImageStream(images, half, batch=64, seed=seed_of(seed, n)) for n, half in enumerate(halves))

    def loss_at(stream: ImageStream, number: int) -> LossOf:
        pixels, labels = stream.batch(number)
        return loss_on((F.avg_pool2d(pixels, 2), labels))

    return lambda search: loss_at(weights, search.weight_steps), [
        loss_at(theta, number) for number in range(judged)
    ]


def nasbench201_parent(epochs: int, seed: int, *, cells: int = 1, judged: int = 4) -> Parent:
    settings = replace(cifar10_study.PRESETS["laptop"], cells=cells, epochs=2 * epochs, warmup=epochs)
    search = cifar10_study.Cifar10(settings, data_folder(None)).make_search("random", seed)
    return Parent(search, *cifar10_losses(seed, judged), 64)


def macro_parent(epochs: int, seed: int) -> Parent:
    build = partial(spaces.get, "nasbench_macro", width=8, head=128)
    return Parent(begin(build, epochs * 100, seed), *cifar10_losses(seed), 64)


def recurrent_parent(epochs: int, seed: int, *, normalise: bool = False) -> Parent:
    """Train as the study does; judge on 4 segments of the training text, each read with an empty state."""
    settings = replace(ptb_study.PRESETS["laptop"], epochs=2 * epochs, normalise=normalise)
    study = ptb_study.Ptb(settings, data_folder(None))
    search, data = study.begin("random", seed)
    search.progress.set_length(study.length.turns, study.length.turns // 2)
    text = penn_treebank.segments(study.data_folder, settings.tokens, settings.batch, settings.length)

    def judged(number: int) -> LossOf:
        tokens, targets = text.at(number)
        return lambda model: model.loss(tokens, targets)[0]  # type: ignore[operator]

    places = [number * len(text) // 4 for number in range(4)]
    return Parent(
        search, lambda search: data.losses(search)[0], [*map(judged, places)], settings.batch * settings.length
    )


STRUCTURES: dict[str, Structure] = {
    "chain": Structure("chain: layers with BatchNorm", partial(digit_parent, chain), (15, 120)),
    "blocks": Structure("blocks: the skip inside the candidate", partial(digit_parent, blocks), (15, 120)),
    "tied": Structure("blocks, each decision in three places", partial(digit_parent, tied), (15, 120)),
    "residual": Structure("residual: the choice is the branch", partial(digit_parent, residual), (15, 120)),
    "cell": Structure("cell: sums at nodes", partial(digit_parent, cell), (15, 120)),
    "transformer": Structure("pre-norm transformer", transformer_parent, (3, 30)),
    "readme": Structure("README's example", readme_parent, (5, 20)),
    "nasbench201": Structure("NAS-Bench-201", nasbench201_parent, (6, 24), downloads=True),
    "nasbench_macro": Structure("NAS-Bench-Macro", macro_parent, (6, 24), downloads=True),
    "recurrent": Structure("recurrent cell", recurrent_parent, (2, 8), downloads=True),
    "recurrent_normalised": Structure(
        "recurrent cell, nodes normalised", partial(recurrent_parent, normalise=True), (2, 8), downloads=True
    ),
}
