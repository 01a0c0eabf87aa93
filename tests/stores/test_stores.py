"""What every store must hold: it changes where the numbers are, and never what they are."""

from functools import partial

import pytest
import torch
from torch import nn

from advnas import Choice, NonFiniteLoss, Search, strategies
from advnas import stores as weights
from advnas.strategies.darts import Darts

TIGHT = 600_000  # less than all candidates of the laboratory's network, more than one draw
STORES = {
    "host": weights.Host,
    "disk": partial(weights.Disk, "4MB"),
    "tight disk": partial(weights.Disk, TIGHT),
}
OPTIMIZERS = {
    "plain": partial(torch.optim.SGD, lr=0.05),
    "amsgrad": partial(torch.optim.Adam, lr=0.01, amsgrad=True),
    "foreach": partial(torch.optim.AdamW, lr=0.01, foreach=True),
    "fused": partial(torch.optim.AdamW, lr=0.01, fused=True),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.01, momentum=0.5),
    "adagrad": partial(torch.optim.Adagrad, lr=0.01),
    "adafactor": partial(torch.optim.Adafactor, lr=0.01),
}


@pytest.fixture(params=list(STORES))
def store(request):
    return STORES[request.param]()


@pytest.mark.parametrize("name", ["host", "disk"])
@pytest.mark.parametrize("strategy", [*strategies.names(), Darts(second_order=True)], ids=str)
def test_every_strategy_is_bit_identical_to_a_resident_search(lab, name, strategy):
    budget = {"memory_budget": "4MB"} if name == "disk" else {}
    resident, other = lab.search_with("resident", strategy), lab.search_with(name, strategy, **budget)
    for search in (resident, other):
        lab.take_steps(search, 4)
    lab.assert_equal(resident, other)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_is_bit_identical_and_its_state_travels(lab, store, optimizer):
    if isinstance(store, weights.Disk):
        store.budget *= 2  # some optimisers keep more than a momentum
    options = {"weight_optimizer": OPTIMIZERS[optimizer]}
    resident, other = lab.search_with("resident", **options), lab.search_with(store, **options)
    for search in (resident, other):
        lab.take_steps(search, 6)
    lab.assert_equal(resident, other)


def test_inherited_and_fresh_derived_networks_are_the_same_and_independent(lab, store):
    resident, other = lab.search_with("resident"), lab.search_with(store)
    for search in (resident, other):
        lab.take_steps(search, 4)
    for fresh in (None, 3):
        ours, theirs = (search.derive(fresh=fresh).eval() for search in (resident, other))
        assert torch.equal(lab.loss_of(ours), lab.loss_of(theirs))
    before = [value.clone() for value in theirs.state_dict().values()]
    lab.take_steps(other, 1)
    assert all(map(torch.equal, before, theirs.state_dict().values()))


def test_a_state_can_move_between_stores(lab, store):
    resident, other = lab.search_with("resident"), lab.search_with(store)
    lab.take_steps(resident, 3)
    other.restore(resident.state())
    lab.take_steps(other, 3, start=3)
    again = lab.search_with("resident")
    again.restore(other.state())
    lab.take_steps(resident, 3, start=3)
    lab.assert_equal(resident, other)
    lab.assert_equal(resident, again)


def test_a_step_that_fails_leaves_everything_as_it_was(lab, store):
    search, untouched = lab.search_with(store), lab.search_with("resident")
    for one in (search, untouched):
        lab.take_steps(one, 2)
        for step in (one.weight_step, one.architecture_step, one.joint_step):
            with pytest.raises(NonFiniteLoss):
                step(lambda model: lab.loss_of(model) * float("nan"))
        lab.take_steps(one, 2, start=2)
    lab.assert_equal(search, untouched)


def test_a_model_that_is_converted_later_is_taken_in_again(lab, store):
    search, resident = lab.search_with(store), lab.search_with("resident")
    for one in (search, resident):
        lab.take_steps(one, 2)
        one.model.to(memory_format=torch.contiguous_format)
        lab.take_steps(one, 2, start=2)
    assert torch.equal(search.theta.logits(), resident.theta.logits())
    assert all(map(torch.equal, search.model.state_dict().values(), resident.model.state_dict().values()))


def test_without_shared_weights_and_with_scalars_and_none_at_all(store):
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = nn.Parameter(torch.ones(()))

        def forward(self, x):
            return x * self.factor

    def run(store):
        model = nn.Sequential(Choice({"scale": Scale(), "skip": nn.Identity()}))
        search = Search(model, "random", weights=store, weight_optimizer=partial(torch.optim.Adam, lr=0.1))
        for _ in range(6):
            search.weight_step(lambda model: model(torch.ones(2)).sum())
        return model[0].candidates[0].factor

    assert torch.equal(run("resident"), run(store))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "disk"}, r"must know how much .* memory_budget='2GB'"),
        ({"weights": "host", "memory_budget": "2GB"}, r"only weights='disk' keeps to a budget"),
        ({"memory_budget": "2GB"}, r"weights is 'resident'"),
        ({"weights": "flash"}, r"'resident', 'host', 'disk' or a store object, got 'flash'"),
        ({"weights": "disk", "memory_budget": "lots"}, r"got 'lots'\. Write for example '2GB'"),
    ],
)
def test_what_cannot_work_is_said(lab, options, message):
    with pytest.raises(ValueError, match=message):
        Search(lab.network(), **options)


def test_a_class_is_no_store(lab):
    with pytest.raises(TypeError, match=r"Write for example Host\(\.\.\.\)"):
        Search(lab.network(), weights=weights.Host)


def test_a_store_keeps_the_candidates_of_one_search(lab, store):
    lab.search_with(store)
    with pytest.raises(ValueError, match=r"already keeps the candidates of a search\. Make a new one"):
        lab.search_with(store)
