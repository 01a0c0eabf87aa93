import copy
from functools import partial

import pytest
import torch
from torch import nn

from advnas import Choice, Search
from advnas.search.plan import available_bytes

X = torch.randn(4, 8)


def model():
    wide = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))
    return nn.Sequential(
        nn.Linear(8, 8), nn.BatchNorm1d(8), Choice({"skip": nn.Identity(), "linear": nn.Linear(8, 8), "wide": wide})
    )


def loss(model):
    return model(X).square().mean()


def test_a_plan_counts_weights_and_what_the_optimiser_keeps():
    network = model()
    search = Search(network, weight_optimizer=partial(torch.optim.Adam, lr=0.1))
    plan = search.plan(loss)
    everything = sum(parameter.numel() for parameter in network.parameters())
    assert (plan.parameters, plan.weights, plan.optimizer_factor) == (everything, 4 * everything, 2)
    assert plan.weights_of_one <= plan.weights
    assert plan.stored_peak < plan.sparse_peak
    copy_to_undo = 3 * plan.weights_of_one
    assert plan.activations < copy_to_undo
    assert plan.sparse_peak == 3 * plan.weights + plan.weights_of_one + copy_to_undo
    assert plan.pass_seconds > 0
    plain = Search(model(), weight_optimizer=partial(torch.optim.SGD, lr=0.1)).plan(loss)
    assert plain.optimizer_factor == 0


def test_nothing_is_changed_by_planning():
    search = Search(model(), "advantage", seed=3)
    before, random = copy.deepcopy(search.state()), torch.random.get_rng_state()
    search.plan(loss)
    assert torch.equal(torch.random.get_rng_state(), random)
    for name, value in search.state()["weights"]["model"].items():
        assert torch.equal(value, before["weights"]["model"][name])
    assert all(parameter.grad is None for parameter in search.model.parameters())
    assert search.model[1].track_running_stats


def test_activations_are_those_that_one_architecture_keeps():
    class Keep(nn.Module):
        def __init__(self, copies):
            super().__init__()
            self.copies = copies

        def forward(self, x):
            for _ in range(self.copies):
                x = x.sigmoid()  # keeps its result
            return x

    choice = Choice({str(copies): Keep(copies) for copies in (1, 10)})
    plan = Search(nn.Sequential(nn.Linear(8, 8), choice)).plan(lambda model: model(X).sum())
    one = X.nbytes
    assert plan.activations in (2 * one, 11 * one)  # and the input of the linear layer
    assert plan.dense_activations == 13 * one


def test_a_plan_is_measured_in_the_precision_of_the_search():
    seen = []

    def watched(model):
        seen.append(torch.is_autocast_enabled("cpu"))
        return loss(model)

    Search(model(), precision="bf16").plan(watched)
    assert all(seen)
    Search(model()).plan(watched)
    assert not seen[-1]


def test_whether_it_fits_goes_by_the_free_memory():
    plan = Search(model()).plan(loss)
    if plan.available is None:
        pytest.skip("free memory is not known on this system")
    assert plan.available == pytest.approx(available_bytes(torch.device("cpu")), rel=0.5)
    assert plan.fits(plan.sparse_peak)
    assert not plan.fits(plan.available + 1)
    assert available_bytes(torch.device("meta")) is None
