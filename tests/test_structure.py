"""Nested decisions: which networks contain them, and which architectures are the same network."""

from collections import Counter

import pytest
import torch
from torch import nn

from advnas import Choice, SearchSpace, Width, Zero
from advnas.structure import Nesting, part_of
from networks import Tied, apart, nested


def inside_out():
    """The decision that comes first in the network lies inside a candidate of one that comes later."""
    deep = Choice({"inner": nn.Sequential(tied_act(), nn.Linear(4, 4)), "plain": nn.Linear(4, 4)}, name="late")
    first = Choice({"with": nn.Sequential(nn.Linear(4, 4), tied_act()), "none": Zero()}, name="early")
    return nn.Sequential(first, deep)


def tied_act():
    return Choice({"relu": nn.ReLU(), "tanh": nn.Tanh()}, name="act")


def flat():
    return nn.Sequential(tied_act(), Choice({"linear": nn.Linear(4, 4), "none": nn.Identity()}, name="layer"))


SPACES = {"nested": nested, "tied": Tied, "apart": apart, "inside out": inside_out, "flat": flat}


@pytest.fixture(params=SPACES)
def space(request):
    return SearchSpace(SPACES[request.param]())


def test_a_network_contains_the_decisions_that_it_runs(space):
    nesting = Nesting.of(space)
    names = [decision.name for decision in space.decisions]
    for architecture in space.architectures():
        with space.running(architecture) as trace, torch.no_grad():
            space.model(torch.zeros(2, 4))
        ran = {name for name, hit in zip(names, trace.reached.tolist(), strict=True) if hit}
        assert set(part_of(nesting.nested, architecture)) == ran
        chosen = space.one_hot(architecture)[None]
        assert {name for row, name in enumerate(names) if nesting.contains(row, chosen)} == ran


def test_architectures_that_derive_the_same_network_have_one_canonical_form(space):
    nesting = Nesting.of(space)
    networks = Counter((nesting.canonical(one), str(space.derive(one))) for one in space.architectures())
    assert len(networks) == len({form for form, _ in networks}) == len({module for _, module in networks})
    assert all(str(space.derive(form)) == module for form, module in networks)
    assert nesting.count(10_000) == len(networks)
    assert nesting.count(3) == 3


def test_decisions_come_behind_those_that_they_lie_inside(space):
    nesting = Nesting.of(space)
    names = [space.decisions[row].name for row in nesting.order]
    assert sorted(nesting.order) == list(range(len(space)))
    for name, alternatives in nesting.nested.items():
        assert all(names.index(outer) < names.index(name) for one in alternatives for outer in one)


def test_a_space_without_nested_decisions_has_the_order_of_theta_and_as_many_networks_as_architectures():
    nesting = Nesting.of(SearchSpace(flat()))
    assert (nesting.nested, nesting.order, nesting.count(100)) == ({}, [0, 1], 4)


def test_tied_decisions_that_lie_inside_each_other_are_taken_to_be_in_every_network():
    def pair(outer, inner):
        layers = Choice({"x": nn.Identity(), "y": nn.Tanh()}, name=inner)
        return Choice({"x": nn.Identity(), "y": nn.Sequential(layers)}, name=outer)

    def place(name, body):
        return Choice({"with": nn.Sequential(body), "none": nn.Identity()}, name=name)

    model = nn.Sequential(place("p", pair("a", "b")), place("q", pair("b", "a")))
    assert Nesting.of(SearchSpace(model)).nested == {}


def test_widths_of_one_body_are_counted_once():
    body = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))
    space = SearchSpace(nn.Sequential(Width(body, (8, 32), name="w"), Width(body, (8, 32), name="w")))
    for width in ("8", "32"):
        derived = sum(weight.numel() for weight in space.derive({"w": width}).parameters())
        assert space.operation_sizes()["w"][width] == derived
