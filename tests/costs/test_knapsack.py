"""What the solver calls best is the best of all within all limits; or it says why there is none."""

import itertools
import math
import random
import sys
import time

import pytest

from advnas.costs import Cost, Infeasible, Limit, cheapest, dearest, most_valuable


def problem(seed):
    """A small random problem: decisions, values, 1 to 3 costs, of which some terms lie inside other operations."""
    dice = random.Random(seed)
    decisions = {f"d{i}": [f"o{j}" for j in range(dice.randint(1, 4))] for i in range(dice.randint(1, 5))}
    values = {(name, one): dice.gauss(0, 2) for name, own in decisions.items() for one in own}
    outer = {}
    for name in list(decisions)[1:]:
        if dice.random() < 0.4:
            other = dice.choice([before for before in decisions if before < name])
            outer[name] = outer.get(other, frozenset()) | {(other, dice.choice(decisions[other]))}
    limits = []
    for number in range(dice.randint(1, 3)):
        integers = dice.random() < 0.5
        draw = (lambda: float(dice.randint(0, 9))) if integers else (lambda: 10 * dice.random())
        terms = {outer.get(name, frozenset()) | {(name, one)}: draw() for name, one in values}
        cost = Cost(f"cost{number}", "", draw(), terms)
        reach = (cost.of(cheapest(cost, decisions)), cost.of(dearest(cost, decisions)))
        limits.append(Limit(cost, dice.uniform(0.9 * reach[0], reach[1]) + 1e-3))
    return decisions, values, limits


def architectures(decisions):
    for chosen in itertools.product(*decisions.values()):
        yield dict(zip(decisions, chosen, strict=True))


@pytest.mark.parametrize("block", range(5))
def test_it_equals_brute_force(block):
    feasible = 0
    for seed in range(50 * block, 50 * block + 50):
        decisions, values, limits = problem(seed)
        within = [one for one in architectures(decisions) if all(limit.allows(one) for limit in limits)]
        if not within:
            with pytest.raises(Infeasible):
                most_valuable(values, decisions, limits)
            continue
        feasible += 1
        best = max(math.fsum(values[pair] for pair in one.items()) for one in within)
        found = most_valuable(values, decisions, limits)
        assert all(limit.allows(found) for limit in limits)
        assert math.fsum(values[pair] for pair in found.items()) == pytest.approx(best, abs=1e-9)
    assert 25 <= feasible <= 50


@pytest.mark.parametrize("seed", range(30))
def test_the_cheapest_and_the_dearest_are(seed):
    decisions, _, limits = problem(seed)
    cost = limits[0].cost
    all_costs = [cost.of(one) for one in architectures(decisions)]
    assert cost.of(cheapest(cost, decisions)) == pytest.approx(min(all_costs))
    assert cost.of(dearest(cost, decisions)) == pytest.approx(max(all_costs))


def two_edges(limit, other=None):
    decisions = {"edge": ["conv", "skip"], "head": ["wide", "narrow"]}
    values = {("edge", "conv"): 1.5, ("edge", "skip"): 0.0, ("head", "wide"): 1.0, ("head", "narrow"): 0.0}
    terms = {frozenset([pair]): 10.0 * value for pair, value in values.items()} | {
        frozenset([("head", "narrow")]): 4.0
    }
    slow = {frozenset([pair]): 3.0 - value for pair, value in values.items()}
    limits = [Limit(Cost("parameters", "", 100, terms), limit)]
    limits += [] if other is None else [Limit(Cost("latency", "ms", 0.5, slow), other)]
    return values, decisions, limits


def test_a_limit_that_is_met_exactly_is_met():
    assert dict(most_valuable(*two_edges(119))) == {"edge": "conv", "head": "narrow"}


def test_a_limit_below_the_least_names_it_and_the_decisions_that_bind():
    with pytest.raises(Infeasible, match=r"least parameters .* is 104 parameters, and the limit is 50") as raised:
        most_valuable(*two_edges(50))
    assert raised.value.least == {"parameters": 104}
    assert raised.value.binding == ("head",)
    assert "100 parameters are outside all decisions" in str(raised.value)


def test_limits_that_hold_one_by_one_and_not_together_say_so():
    with pytest.raises(Infeasible, match=r"With parameters within 105 parameters, the least latency .* is 6.5 ms"):
        most_valuable(*two_edges(105, 5))


def test_200_decisions_of_10_operations_take_about_a_second_of_work():
    dice = random.Random(0)
    decisions = {f"d{i}": [f"o{j}" for j in range(10)] for i in range(200)}
    pairs = [(name, one) for name, own in decisions.items() for one in own]
    cost = Cost("parameters", "", 0, {frozenset([pair]): float(dice.randint(0, 10**5)) for pair in pairs})
    limit = Limit(cost, 200 * 2e4)
    start = time.process_time()
    found = most_valuable({pair: dice.gauss(0, 1) for pair in pairs}, decisions, [limit])
    assert limit.allows(found)
    assert time.process_time() - start < 10  # 0.1 s on a quiet core; a wrong formulation takes minutes


def test_nothing_is_printed(capfd):
    for seed in range(20):
        decisions, values, limits = problem(seed)
        try:
            most_valuable(values, decisions, limits)
        except Infeasible:
            continue
    assert capfd.readouterr().out == ""


def test_the_solver_works_where_standard_output_is_closed(monkeypatch):
    """As that of a daemon."""
    monkeypatch.setattr(sys, "stdout", None)
    decisions, values, limits = problem(0)
    assert all(limit.allows(most_valuable(values, decisions, limits)) for limit in limits)
