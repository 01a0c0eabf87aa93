"""One seed, any number of independent streams; and the one place that touches torch's global generators."""

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

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
        devices: whose generators are wanted besides the CPU's.
    """
    with alone():
        before = GeneratorStates(devices)
        try:
            torch.default_generator.manual_seed(seed)
            for device in before.devices:
                _seed(device, seed)
            yield
        finally:
            before.restore()


class GeneratorStates:
    """Where torch's global generators stand at a moment.

    Args:
        devices: whose generators are wanted besides the CPU's.
    """

    def __init__(self, devices: Iterable[torch.device] = ()) -> None:
        self._cpu = torch.default_generator.get_state()
        self._others = {
            device: _module_of(device).get_rng_state(*_argument(device))
            for device in devices
            if _has_generator(device)
        }

    @property
    def devices(self) -> list[torch.device]:
        """Those that have a generator besides the CPU's."""
        return list(self._others)

    def restore(self) -> None:
        """Put the generators back to that moment."""
        torch.default_generator.set_state(self._cpu)
        for device, state in self._others.items():
            _module_of(device).set_rng_state(state, *_argument(device))

    @contextmanager
    def again(self) -> Iterator[None]:
        """Give the same random numbers once more while this is open, and then go on as if nothing had been."""
        now = GeneratorStates(self._others)
        self.restore()
        try:
            yield
        finally:
            now.restore()


def _module_of(device: torch.device) -> Any:
    """torch.cuda, torch.xpu, torch.mps and the like; None where torch has no module for the kind of device."""
    return getattr(torch, device.type, None)


def _has_generator(device: torch.device) -> bool:
    """Whether a device has a generator of its own, besides the CPU's, which is always taken."""
    return device.type != "cpu" and hasattr(_module_of(device), "get_rng_state")


def _argument(device: torch.device) -> tuple[torch.device, ...]:
    """What tells a module which of its generators is meant; there is one MPS device, and torch.mps takes none."""
    return () if device.type == "mps" else (device,)


def _seed(device: torch.device, seed: int) -> None:
    """Seed one device's generator: `manual_seed` seeds that of the current device."""
    module = _module_of(device)
    with getattr(module, "device", nullcontext)(device):
        module.manual_seed(seed)
