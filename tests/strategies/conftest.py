import pytest
import torch

from advnas.strategies import Feedback


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@pytest.fixture
def feedback():
    """Makes what comes back from a network: feedback(loss=..., slope=..., reached=...)."""

    def make(*, loss=0.0, slope=None, reached=None, decisions=1, probe=None, unrolled=None):
        slope = None if slope is None else torch.as_tensor(slope)
        decisions = decisions if slope is None else slope.shape[-2]
        reached = torch.ones(decisions, dtype=torch.bool) if reached is None else torch.tensor(reached)
        return Feedback(loss=torch.as_tensor(loss), slope=slope, reached=reached, probe=probe, unrolled=unrolled)

    return make
