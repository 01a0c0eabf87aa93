"""The source code of Python's standard library, character by character: real text that is on every machine here.

Which text that is depends on the version of Python, and so do all numbers that come out of it.
"""

import math
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from advnas.arguments import check_count
from advnas.randomness import generator
from advnas.task import Task

CHARACTERS = 128
"""ASCII; anything else is read as character 0."""
_EVERY = 10  # files, of which one is for theta and one for the test
_JUDGED = 40  # minibatches of the test


def build(*, batch: int = 16, context: int = 64, steps: int = 100) -> Task:
    """Build the task: predict the next character. The loss is in bits per character.

    Of every ten files in alphabetical order eight are for the weights, one is for theta and one to judge by.

    Args:
        batch: pieces of text per minibatch.
        context: characters per piece.
        steps: minibatches per epoch; every one has new pieces.
    """
    weights, theta, test = texts()
    judged = list(Pieces(test, batch, context, _JUDGED).drawn(generator(0)))
    return Task(
        Pieces(weights, batch, context, steps),
        Pieces(theta, batch, context, steps),
        bits_per_character,
        test=judged,
        examples=batch * context,
    )


def bits_per_character(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean cross entropy of the next character, in bits; the logits are [batch, characters, time]."""
    seen, following = batch
    return F.cross_entropy(model(seen), following) / math.log(2)


@dataclass(frozen=True, eq=False)
class Pieces:
    """Minibatches of pieces from anywhere in a text, other ones every time: the characters and those that follow.

    The places are drawn from torch's global generator, which `Replay` seeds for every minibatch.
    """

    text: Tensor
    batch: int
    context: int
    steps: int

    def __post_init__(self) -> None:
        for name in ("batch", "context", "steps"):
            check_count(name, getattr(self, name))
        if self.context >= len(self.text):
            raise ValueError(f"A text of {len(self.text):,} characters has no piece of context={self.context}.")

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.drawn(None)

    def drawn(self, random: torch.Generator | None) -> Iterator[tuple[Tensor, Tensor]]:
        """Draw all minibatches, from a generator of one's own or from torch's."""
        window = torch.arange(self.context + 1)
        for _ in range(self.steps):
            first = torch.randint(len(self.text) - self.context, (self.batch, 1), generator=random)
            piece = self.text[first + window].long()
            yield piece[:, :-1], piece[:, 1:]


@cache
def texts() -> tuple[Tensor, Tensor, Tensor]:
    """Read the texts for the weights, for theta and for the test: uint8."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    if len(files) < _EVERY:
        raise FileNotFoundError(
            f"The source code of Python's standard library should be in {sysconfig.get_path('stdlib')}, where "
            f"{len(files)} files are. Take another task, such as --task digits."
        )
    theta, test = (_joined(files[place::_EVERY]) for place in (_EVERY - 2, _EVERY - 1))
    return _joined([file for number, file in enumerate(files) if number % _EVERY < _EVERY - 2]), theta, test


def _joined(files: Sequence[Path]) -> Tensor:
    codes = torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8)
    return codes * (codes < CHARACTERS)
