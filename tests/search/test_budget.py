"""Limits of a search: they move theta, the answer holds them, and a search under limits resumes exactly."""

import json
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from advnas import Choice, Search, SearchSpace, Task, costs, strategies
from advnas.costs import Cost, Infeasible, Limit
from advnas.search.budget import Budget

LEARNING = [name for name in strategies.names() if strategies.strategy_type(name).learns]


def layer(width):
    wide = nn.Sequential(nn.Linear(width, 8 * width), nn.ReLU(), nn.Linear(8 * width, width))
    inner = Choice({"tanh": nn.Tanh(), "linear": nn.Linear(width, width)}, name="inner")
    return Choice({"wide": wide, "nested": nn.Sequential(nn.Linear(width, width), inner), "skip": nn.Identity()})


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), layer(6), layer(6), nn.Linear(6, 2))


def task():
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    batches = [(x[i : i + 16], (x[i : i + 16, 0] > 0).long()) for i in range(0, 64, 16)]
    return Task(batches[:2], batches[2:], lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]))


def search(strategy="contrast", **options):
    theta = partial(torch.optim.Adam, lr=0.1)
    return Search(network(), strategy, architecture_optimizer=theta, **options)


def expected_parameters(one):
    return costs.Expected([costs.parameters(one.space)], costs.operations_of(one.space)).of(
        one.distribution.probabilities
    )


@pytest.mark.parametrize("strategy", LEARNING)
def test_a_limit_moves_every_strategy_inside_and_the_answer_holds_it(strategy):
    limit = 250
    limited = search(strategy, limit={"parameters": limit})
    start = expected_parameters(limited)
    limited.run(task(), epochs=30, warmup=1)
    cost = costs.parameters(limited.space)
    assert cost.of(limited.argmax()) <= limit
    assert cost.of(limited.process_best.architecture if limited.process_best else limited.argmax()) <= limit
    assert expected_parameters(limited) < start


def test_the_expected_cost_falls_below_the_limit_where_the_reward_does_not_care():
    one = search(limit={"parameters": 250})
    one.run(task(), epochs=40)
    assert expected_parameters(one) <= 250


def test_without_a_limit_that_binds_the_answer_is_the_mode():
    one = search(limit={"parameters": "1M"})
    one.run(task(), epochs=4)
    assert one.argmax() == one.space.architecture(one.distribution.mode()) == one.argmax({})


def test_other_limits_can_be_asked_of_a_search_that_is_over():
    one = search()
    one.run(task(), epochs=4)
    products = costs.multiply_adds(one.space, torch.zeros(1, 4))
    both = {"parameters": 200, "multiply_adds": "160"}
    found = one.argmax(both, costs=[products])
    assert costs.parameters(one.space).of(found) <= 200
    assert products.of(found) <= 160
    with pytest.raises(Infeasible, match="least parameters of any architecture is 44 parameters"):
        one.argmax({"parameters": 10})


def test_the_journal_has_the_trace_of_every_limit(tmp_path):
    search(limit={"parameters": 250}).run(task(), epochs=4, folder=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    traced = [line["limits"]["parameters"] for line in lines if line["phase"] == "architecture"]
    assert all(one.keys() == {"expected", "limit", "multiplier"} for one in traced)
    assert traced[-1]["multiplier"] > 0


@pytest.mark.parametrize("strategy", ["contrast", "enas", "parsec", "darts"])
def test_a_search_under_limits_resumes_exactly(strategy, tmp_path):
    made = partial(search, strategy, limit={"parameters": 250}, penalty={"parameters": 1e-4})
    whole, first, second = made(), made(), made()
    for one in (whole, first, second):
        one.progress.set_length(20)
    steps = list(zip(task().training, task().validation, strict=True)) * 10
    losses = [[partial(_swapped, batch) for batch in pair] for pair in steps]
    for training, validation in losses:
        whole.turn(training, lambda validation=validation: validation)
    for training, validation in losses[:9]:
        first.turn(training, lambda validation=validation: validation)
    torch.save(first.state(), tmp_path / "state.pt")
    second.restore(torch.load(tmp_path / "state.pt", weights_only=True))
    for training, validation in losses[9:]:
        second.turn(training, lambda validation=validation: validation)
    assert torch.equal(whole.distribution.logits, second.distribution.logits)
    assert torch.equal(whole.policy.budget.multipliers, second.policy.budget.multipliers)


def _swapped(batch, model):
    return task().loss(model, batch)


def test_measured_costs_are_taken_over_where_a_search_goes_on():
    space = SearchSpace(network())
    first, again = (costs.latency(space, torch.zeros(2, 4), repeats=1, seed=seed) for seed in (0, 1))
    limit = {"latency": "1s"}
    one, other = (search(limit=limit, costs=[cost]) for cost in (first, again))
    other.restore(one.state())
    assert other.policy.budget.limits[0].cost == first


def test_counted_costs_must_be_the_same_where_a_search_goes_on():
    counted = costs.parameters(SearchSpace(network()))
    changed = replace(counted, constant=counted.constant + 1)
    one, other = (search(limit={"parameters": 250}, costs=[cost]) for cost in (counted, changed))
    with pytest.raises(ValueError, match="the cost 'parameters' has other numbers now"):
        other.restore(one.state())


def test_a_folder_of_another_limit_is_not_gone_on_with(tmp_path):
    search(limit={"parameters": 250}).run(task(), epochs=2, folder=tmp_path)
    for other in (search(limit={"parameters": 200}), search()):
        with pytest.raises(ValueError, match="limits is"):
            other.run(task(), epochs=2, folder=tmp_path, resume=True)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            {"limit": {"parameters": 10}},
            "least parameters of any architecture is 44 parameters, and the limit is 10",
        ),
        ({"limit": {"parametres": 10}}, r"no cost 'parametres' \(did you mean 'parameters'\?\)"),
        (
            {"limit": {"latency": "5ms"}},
            r"Write Search\(\.\.\., costs=\[\.\.\.\]\) with advnas\.costs\.latency\(space, example\)\.",
        ),
        (
            {"limit": {"flops": 10}},
            r"costs=\[\.\.\.\]\) with one of advnas\.costs\.multiply_adds.*name='flops'\)\.",
        ),
        ({"limit": {"parameters": "5ms"}}, "A limit of parameters must be a number"),
        ({"penalty": {"parameters": -1}}, "A penalty of parameters must be a positive number, got -1"),
    ],
)
def test_what_cannot_be_a_limit_is_refused_before_the_search(options, problem):
    with pytest.raises(ValueError, match=problem):
        search(**options)


def test_a_cost_of_another_space_is_refused():
    other = SearchSpace(nn.Sequential(Choice({"a": nn.Linear(1, 1), "b": nn.Identity()}, name="other")))
    with pytest.raises(ValueError, match="'parameters' is of another space"):
        search(limit={"parameters": 100}, costs=[costs.parameters(other)])


def test_a_fixed_penalty_is_the_gradient_of_the_expected_cost():
    one = search(penalty={"parameters": 0.5})
    budget, still = one.policy.budget, torch.zeros(len(one.space), max(one.space.sizes))
    reached = torch.zeros(len(one.space), dtype=torch.bool)
    ascent, learns, _ = budget.steer(still, reached, one.distribution)
    cost = costs.Expected([costs.parameters(one.space)], costs.operations_of(one.space))
    torch.testing.assert_close(ascent, -0.5 * cost.gradient(one.distribution.probabilities)[0].float())
    assert learns.all()


def test_a_multiplier_rises_outside_the_limit_and_falls_to_0_inside():
    space = SearchSpace(network())
    steps = {}
    for most in (200, 10_000):
        budget = Budget.of(space, {"parameters": most}, None, ())
        budget.multipliers.fill_(0.01)
        distribution = search().distribution
        steps[most] = budget.ascend(torch.ones(1), distribution).item()
    assert steps[200] > 0.01
    assert steps[10_000] == 0


@pytest.mark.parametrize("given", ["parameters=100", ("parameters", 100)])
def test_limits_that_are_no_mapping_are_told_how_to_be_written(given):
    with pytest.raises(TypeError, match=r"limit must map .* got .*parameters.*\{'parameters': 100_000\}"):
        search(limit=given)
    with pytest.raises(TypeError, match=r"penalty must map .*\{'parameters': 1e-6\}"):
        search(penalty=given)
    with pytest.raises(TypeError, match="limit must map"):
        search().argmax(given)


def test_which_architectures_are_allowed_is_one_rule():
    """Costs of 0.1, 0.2 and 0.3 are 0.6 together, while the floats add up to a little more."""
    terms = {frozenset({(name, "on")}): value for name, value in {"a": 0.1, "b": 0.2, "c": 0.3}.items()}
    off = {frozenset({(name, "off")}): 0.0 for name in "abc"}
    limit = Limit(Cost("energy", "", 0.0, terms | off), 0.6)
    budget = Budget(dict.fromkeys("abc", ("on", "off")), [limit])
    all_on, none_on = torch.tensor([1.0, 0.0]).expand(3, 2), torch.tensor([0.0, 1.0]).expand(3, 2)
    assert budget.allows(dict.fromkeys("abc", "on"))
    assert budget.allowed(torch.stack([all_on, none_on])).tolist() == [True, True]
    with_less = Budget(budget.decisions, [replace(limit, amount=0.5)])
    assert with_less.allowed(torch.stack([all_on, none_on])).tolist() == [False, True]
    assert Budget(budget.decisions).allowed(torch.stack([all_on, none_on])).tolist() == [True, True]
