"""Minibatches that can be entered at any place, from whatever a user iterates over."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from advnas.randomness import seed_of

Position = tuple[int, int]


class Replay(Iterator[Any]):
    """An iterable of minibatches, read again and again; minibatch n of pass p is the same in every process.

    torch's global generator starts from the seed, the pass and the minibatch's number while each one is fetched,
    and is put back afterwards. That decides the order of a shuffling DataLoader and the augmentation of its
    dataset. A dataset that draws from numpy or the `random` module, or a loader with a generator of its own, is
    beyond its reach: what such data give after a stop differs from what they would have given.

    name: how messages speak of the data.
    share: (rank, size) of a process that shares the data with others: of every `size` minibatches it gets one, and
        those at the end of a pass that do not go round are left out, fetched by all processes alike.
    """

    def __init__(self, batches: Iterable[Any], *, seed: int, name: str, share: tuple[int, int] = (0, 1)) -> None:
        self._batches, self._seed, self._name, self._share = batches, seed, name, share
        self._pass, self._number = 0, 0
        self._iterator: Iterator[Any] | None = None

    @property
    def position(self) -> Position:
        """The pass and the number in it of the minibatch that comes next; the same in all processes that share."""
        return self._pass, self._number // self._share[1]

    def enter(self, position: Position) -> None:
        """Go to a position; the minibatches of its pass that lie before it are fetched and dropped."""
        self._pass, self._number, self._iterator = position[0], 0, None
        while self._number < position[1] * self._share[1]:
            try:
                self._fetch()
            except StopIteration:
                raise ValueError(
                    f"{position[1]} minibatches of a pass over the {self._name} data were read, and there are only "
                    f"{self._number} now"
                ) from None

    def first(self) -> Any:
        """Minibatch 0 of pass 0, whatever the position."""
        return next(Replay(self._batches, seed=self._seed, name=self._name))

    def __next__(self) -> Any:
        rank, size = self._share
        try:
            return [self._fetch() for _ in range(size)][rank]
        except StopIteration:
            if self._number < size:
                few = f", or have fewer minibatches than the {size} processes that share them" if size > 1 else ""
                raise ValueError(
                    f"The {self._name} data are empty, or an iterator that can be read only once{few}."
                ) from None
        self._pass, self._number, self._iterator = self._pass + 1, 0, None
        return next(self)

    def _fetch(self) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed_of(self._seed, self._pass, self._number))
            if self._iterator is None:
                self._iterator = iter(self._batches)
            batch = next(self._iterator)
        self._number += 1
        return batch
