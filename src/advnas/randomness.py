"""One seed, any number of independent streams. Nothing in advnas uses global randomness."""

import numpy as np
import torch


def seed_of(*path: int) -> int:
    """A seed for one purpose: different paths, such as (seed,) or (seed, trial), never share a stream."""
    # The length first: numpy fills short paths up with zeros, so that (1,) and (1, 0) would be the same.
    low, high = np.random.SeedSequence((len(path), *path)).generate_state(2)
    return (int(high) << 31) ^ int(low)


def generator(*path: int) -> torch.Generator:
    """A fresh generator for one purpose."""
    return torch.Generator().manual_seed(seed_of(*path))
