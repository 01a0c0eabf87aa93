"""Answers under limits: the front, answers that are measured again, and proposals that hold the limits."""

from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from advnas import Choice, Search, SearchSpace, Task, costs
from advnas.answers import finalists, front, measure_answer, rank_architectures, refine


def layer():
    wide = nn.Sequential(nn.Linear(6, 60), nn.ReLU(), nn.Linear(60, 6))
    return Choice({"wide": wide, "plain": nn.Linear(6, 6), "skip": nn.Identity()})


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), layer(), layer(), layer(), nn.Linear(6, 2))


def made(**options):
    one = Search(network(), architecture_optimizer=partial(torch.optim.Adam, lr=0.1), **options)
    random = torch.Generator().manual_seed(3)
    one.theta.assign(torch.tensor([[3.0, 1.0, 0.0]]).repeat(3, 1) + torch.randn(3, 3, generator=random) / 3)
    return one


def task():
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    batches = [(x[i : i + 16], (x[i : i + 16, 0] > 0).long()) for i in range(0, 64, 16)]
    return Task(batches[:2], batches[2:], lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]))


def test_the_front_rises_from_the_least_cost_to_the_argmax():
    search = made()
    points = front(search, "parameters", points=20)
    assert points[0].cost == 44
    assert points[-1].architecture == search.argmax()
    for one, other in pairwise(points):
        assert one.cost < other.cost
        assert one.log_likelihood < other.log_likelihood
    assert all(one.cost <= one.limit for one in points)


def test_no_architecture_is_cheaper_and_more_likely_than_a_point_of_the_front():
    search, cost = made(), costs.parameters(made().space)
    log_p = search.distribution.logits.double().log_softmax(-1)
    every = [
        (cost.of(one), float(log_p[search.space.one_hot(one).bool()].sum())) for one in search.space.architectures()
    ]
    for point in front(search, cost, points=8):
        assert not any(c <= point.limit and p > point.log_likelihood + 1e-9 for c, p in every)


def test_no_point_costs_more_than_its_limit_by_rounding():
    search = made()
    for seed in range(20):
        random = torch.Generator().manual_seed(seed)
        numbers = [torch.rand(3, generator=random, dtype=torch.float64).tolist() for _ in search.space.decisions]
        rows = {
            decision.name: dict(zip(decision.operations, row, strict=True))
            for decision, row in zip(search.space.decisions, numbers, strict=True)
        }
        energy = costs.table(search.space, rows, name="energy")
        assert all(point.cost <= point.limit for point in front(search, energy, points=2))


def test_a_front_under_another_limit_and_judged_by_the_shared_weights():
    space = SearchSpace(network())
    products = costs.multiply_adds(space, torch.zeros(1, 4))
    search = made(limit={"multiply_adds": 500}, costs=[products])
    for point in front(search, "parameters", points=5, task=task()):
        assert products.of(point.architecture) <= 500
        assert point.loss > 0
    with pytest.raises(
        ValueError, match=r"no cost 'latency'\. Pass the cost itself: advnas\.costs\.latency\(space, example\)\."
    ):
        front(search, "latency")
    with pytest.raises(
        ValueError, match=r"no cost 'flops'\. .*: one of advnas\.costs\.multiply_adds.*name='flops'\)"
    ):
        front(search, "flops")


def test_all_proposals_are_within_the_limits():
    search = made(limit={"parameters": 200})
    allowed = search.policy.budget.allows
    assert not allowed(search.argmax({}))
    ranked = rank_architectures(search, task().validation, task().loss, count=4)
    assert len(ranked) == 4
    assert all(allowed(one.architecture) for one in ranked)
    assert all(allowed(one.architecture) for one in finalists(search, task(), 3).ranked)
    assert allowed(refine(search, task().validation, task().loss).architecture)


def test_the_answer_is_measured_again_and_told():
    space, example = SearchSpace(network()), torch.zeros(8, 4)
    search = made(limit={"latency": "1s"}, costs=[costs.latency(space, example, repeats=2)])
    found = measure_answer(search, example, repeats=2)
    assert found.within
    assert found.rounds == 1
    assert "measured" in str(found)


def test_the_limit_is_tightened_until_the_measured_latency_holds(monkeypatch):
    search = made(limit={"latency": "10ms"}, costs=[slow(SearchSpace(network()))])
    true = {architecture: 2 * search.policy.budget.limits[0].cost.of(architecture) for architecture in everything()}
    measured = iter_latency(search, true)
    monkeypatch.setattr("advnas.answers.measured.whole_latency", measured)
    found = measure_answer(search, torch.zeros(8, 4))
    assert found.within
    assert found.measured == 2 * found.predicted <= 10
    assert found.rounds == 2


def test_rounds_are_bounded_and_a_miss_is_told(monkeypatch):
    search = made(limit={"latency": "10ms"}, costs=[slow(SearchSpace(network()))])
    monkeypatch.setattr("advnas.answers.measured.whole_latency", lambda *_, **__: 50.0)
    found = measure_answer(search, torch.zeros(8, 4), rounds=3)
    assert not found.within
    assert found.rounds <= 3
    assert "NOT within" in str(found)


def test_a_search_without_a_limit_of_latency_says_what_to_write():
    with pytest.raises(ValueError, match="no limit of latency, only of nothing"):
        measure_answer(made(), torch.zeros(8, 4))


def slow(space):
    rows = {d.name: {"wide": 3.0, "plain": 1.0, "skip": 0.5} for d in space.decisions}
    return costs.table(space, rows, name="latency", unit="ms", constant=1.0)


def everything():
    return list(SearchSpace(network()).architectures())


def iter_latency(search, true):
    """A clock that knows what every answer takes; it sees the answers in the order in which they are derived."""
    derived = []
    derive = search.derive
    search.derive = lambda architecture: derived.append(architecture) or derive(architecture)
    return lambda *_, **__: true[derived[-1]]
