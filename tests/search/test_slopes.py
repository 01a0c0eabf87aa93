"""A loss without a gradient at the gates is refused where a strategy learns from it; a path of zeros is not."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from advnas import Choice, Search, Zero, strategies

NEEDS_SLOPES = ("contrast", "advantage", "proxyless", "gdas", "darts", "snas", "nasp")
X, Y = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 2


def network(**more):
    edge = Choice({"linear": nn.Linear(4, 4), "skip": nn.Identity(), **more}, name="edge")
    return nn.Sequential(edge, nn.Linear(4, 2))


def of_detached(model):
    """The head learns, but nothing in front of it: as where a cost is all that is asked of the operations."""
    return F.cross_entropy(model[1](model[0](X).detach()), Y)


@pytest.mark.parametrize("strategy", NEEDS_SLOPES)
@pytest.mark.parametrize("schedule", ["alternate", "joint"])
def test_it_is_refused_with_what_to_write(strategy, schedule):
    search = Search(network(), strategy, schedule=schedule, steps=10)
    step = search.joint_step if schedule == "joint" else search.architecture_step
    before = search.distribution.logits
    with pytest.raises(ValueError, match=r"no gradient at the operations that were drawn.*advnas\.costs"):
        step(of_detached)
    assert torch.equal(search.distribution.logits, before)


@pytest.mark.parametrize("strategy", [name for name in strategies.names() if name not in NEEDS_SLOPES])
def test_strategies_that_learn_from_the_loss_alone_do_not_mind(strategy):
    Search(network(), strategy, steps=10).architecture_step(of_detached)


@pytest.mark.parametrize("strategy", NEEDS_SLOPES)
def test_a_path_of_zeros_is_legitimate(strategy):
    search = Search(nn.Sequential(Choice({"zero": Zero()}, name="edge"), nn.Linear(4, 2)), strategy, steps=10)
    for _ in range(3):
        search.architecture_step(lambda model: F.cross_entropy(model(X), Y))
