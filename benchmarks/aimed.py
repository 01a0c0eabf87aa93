"""Searches that are made to run given architectures, so that the cost of their steps can be compared."""

import ctypes
import platform
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import nn

from advnas import Architecture, Search, SearchSpace
from advnas.distribution import Distribution
from advnas.randomness import generator
from advnas.search import LossOf


class AimedSearch:
    """A search whose theta is moved onto an architecture and its rivals before every step."""

    def __init__(self, model: nn.Module, strategy: str, limit: dict[str, str] | None = None) -> None:
        steps = 1_000_000  # so long that temperatures and learning rates stay as they are at the start
        self._search = Search(model, strategy, steps=steps, limit=limit)

    def aim(self, architecture: Architecture, rivals: Architecture) -> None:
        space = self._search.space
        self._search.theta.assign(50 * space.one_hot(architecture) + 25 * space.one_hot(rivals))

    def steps(self, loss_of: LossOf) -> dict[str, Callable[[], object]]:
        search = self._search
        return {
            "architecture_step": partial(search.architecture_step, loss_of, training_loss_of=loss_of),
            "weight_step": partial(search.weight_step, loss_of),
            "joint_step": partial(search.joint_step, loss_of),
        }


def draw_architectures(model: nn.Module, count: int, seed: int) -> Iterator[tuple[Architecture, Architecture]]:
    """Uniformly drawn architectures, and for each another operation at every decision: the rivals."""
    space = SearchSpace(model)
    uniform = Distribution(torch.zeros(len(space), max(space.sizes)))
    random, random_rivals = generator(seed, 1), generator(seed, 2)
    for _ in range(count):
        chosen = uniform.sample(random)
        yield space.architecture(chosen), space.architecture(uniform.without(chosen).sample(random_rivals))


class Costs:
    """The fastest time of each kind of step on each architecture, and the bytes it keeps, summed over all."""

    def __init__(self) -> None:
        self.bytes: dict[str, int] = defaultdict(int)
        self._fastest: dict[tuple[str, int], float] = {}

    def add(self, kind: str, architecture: int, time_taken: float) -> None:
        key = (kind, architecture)
        self._fastest[key] = min(time_taken, self._fastest.get(key, time_taken))

    def seconds(self, kind: str) -> float:
        return sum(fastest for (of_kind, _), fastest in self._fastest.items() if of_kind == kind)


def keep_freed_memory() -> None:
    """Stop glibc from returning freed memory to the system, for plain training and searches alike.

    Faulting activations in again costs up to a tenth of a step, more or less by chance, and hides what is measured.
    """
    if platform.libc_ver()[0] == "glibc":
        trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
        c_library = ctypes.CDLL(None)
        c_library.mallopt(trim_threshold, 2**31 - 1)
        c_library.mallopt(mmap_threshold, 2**30)
