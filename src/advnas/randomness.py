"""One seed, any number of independent streams; and the one place that touches torch's global generators."""

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np
import torch

_ALONE = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_ALONE._at_fork_reinit)  # type: ignore[attr-defined]


def seed_of(*path: int) -> int:
    """Make a seed for one purpose: different paths, such as (seed,) or (seed, trial), never share a stream."""
    # The length first: numpy fills short paths up with zeros, so that (1,) and (1, 0) would be the same.
    low, high = np.random.SeedSequence((len(path), *path)).generate_state(2)
    return (int(high) << 31) ^ int(low)


def generator(*path: int) -> torch.Generator:
    """Make a fresh generator for one purpose."""
    return torch.Generator().manual_seed(seed_of(*path))


def alone() -> AbstractContextManager[object]:
    """Let other threads that want to be alone wait: torch's global generators are one per process."""
    return _ALONE


@contextmanager
def seeded(seed: int, *devices: torch.device) -> Iterator[None]:
    """Start torch's global generators from a seed while this is open, and put them back afterwards.

    Threads take turns.

    Args:
        seed: where they start.
        devices: whose generators are wanted besides the CPU's; only CUDA devices have one.
    """
    cuda = [device for device in devices if device.type == "cuda"]
    with alone(), torch.random.fork_rng(devices=cuda) if cuda else nullcontext():
        before = torch.default_generator.get_state()
        torch.default_generator.manual_seed(seed)
        for device in cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        try:
            yield
        finally:
            torch.default_generator.set_state(before)


class GeneratorStates:
    """Where torch's global generators stand at a moment.

    Args:
        devices: whose generators are wanted besides the CPU's; only CUDA devices have one.
    """

    def __init__(self, devices: Iterable[torch.device] = ()) -> None:
        self._cpu = torch.default_generator.get_state()
        self._cuda = {device: torch.cuda.get_rng_state(device) for device in devices if device.type == "cuda"}

    def restore(self) -> None:
        """Put the generators back to that moment."""
        torch.default_generator.set_state(self._cpu)
        for device, state in self._cuda.items():
            torch.cuda.set_rng_state(state, device)

    @contextmanager
    def again(self) -> Iterator[None]:
        """Give the same random numbers once more while this is open, and then go on as if nothing had been."""
        now = GeneratorStates(self._cuda)
        self.restore()
        try:
            yield
        finally:
            now.restore()
