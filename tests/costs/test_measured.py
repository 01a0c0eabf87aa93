"""Latency and memory: what is measured, and what the numbers stand for."""

import pytest
import torch
from torch import nn

from advnas import Choice, SearchSpace, costs
from advnas.costs.latency import _corrected
from networks import nested, uniform


def test_the_latency_of_a_larger_operation_is_larger_and_the_fit_is_told():
    sizes = {"small": nn.Linear(64, 64), "large": nn.Sequential(*(nn.Linear(64, 64) for _ in range(60)))}
    space = SearchSpace(nn.Sequential(Choice(sizes, name="layer")))
    space.model.train()
    cost = costs.latency(space, torch.zeros(64, 64), repeats=5)
    assert cost.unit == "ms"
    assert cost.of({"layer": "large"}) > cost.of({"layer": "small"}) > 0
    assert "R²" in cost.note
    assert space.model.training


def test_a_nested_space_is_measured_where_it_is_reached():
    space = SearchSpace(nested())
    cost = costs.latency(space, torch.zeros(2, 4), repeats=2)
    reached = {"outer": "block", "inner": "wide", "norm": "layer", "deepest": "thin"}
    assert cost.of(reached) > cost.of({**reached, "outer": "skip"})


def test_the_correction_finds_a_line_again():
    raw = costs.Cost("latency", "ms", 1.0, {frozenset([("a", "x")]): 2.0, frozenset([("a", "y")]): 5.0})
    cost = _corrected(raw, [3.0, 6.0, 3.0], [0.5 + 2 * value for value in (3.0, 6.0, 3.0)])
    assert cost.of({"a": "x"}) == pytest.approx(6.5)
    assert cost.of({"a": "y"}) == pytest.approx(12.5)
    assert "R² = 1.000" in cost.note


RAW = costs.Cost("latency", "ms", 1.0, {frozenset([("a", "x")]): 1.0, frozenset([("a", "y")]): 2.0})


def test_the_correction_may_subtract_what_the_clock_costs_but_never_all():
    cost = _corrected(RAW, [1.0, 2.0, 3.0], [0.5, 2.5, 4.5])
    assert (cost.constant, cost.of({"a": "x"}), cost.of({"a": "y"})) == pytest.approx((0.5, 2.5, 4.5))
    assert cost.note == "fit to 3 whole networks: -1.5 ms + 2 x sum, R² = 1.000"


def test_a_fit_that_would_make_the_fixed_part_negative_goes_through_the_origin():
    cost = _corrected(RAW, [2.0, 3.0, 4.0], [0.5, 3.5, 6.5])
    assert (cost.constant, cost.of({"a": "x"})) == pytest.approx((3.5 / 3, 7 / 3))
    assert "0 ms + 1.17 x sum" in cost.note
    assert cost.note.endswith("through the origin, since the fixed part would be negative")


def test_measurements_that_do_not_rise_with_the_sum_shift_it_alone():
    cost = _corrected(RAW, [1.0, 2.0, 3.0], [4.0, 3.0, 2.0])
    assert (cost.constant, cost.of({"a": "x"}), cost.of({"a": "y"})) == pytest.approx((2.0, 3.0, 4.0))
    assert cost.note.endswith("what was measured does not rise with the sum, which is only shifted")


def test_memory_is_weights_exactly_and_the_largest_peak_of_activations():
    layers = {"small": nn.Linear(10, 10, bias=False), "wide": nn.Sequential(nn.Linear(10, 1000, bias=False))}
    layers["wide"].append(nn.Linear(1000, 10, bias=False))
    space = SearchSpace(nn.Sequential(Choice(layers, name="layer")))
    cost = costs.memory(space, torch.zeros(8, 10))
    weights = 4 * (20000 - 100)
    assert cost.of({"layer": "wide"}) - cost.of({"layer": "small"}) == weights
    peak = 4 * 8 * (10 + 1000 + 10)  # the copy of the input, what is widened, and what comes out of it
    assert cost.constant == pytest.approx(peak, rel=0.05)


def test_no_architecture_needs_more_than_its_memory():
    space = SearchSpace(nested())
    cost = costs.memory(space, torch.zeros(8, 4))
    for architecture in uniform(space, 5):
        alone = SearchSpace(nn.Sequential(Choice({"only": space.derive(architecture)}, name="one")))
        assert costs.memory(alone, torch.zeros(8, 4)).of({"one": "only"}) <= cost.of(architecture)
