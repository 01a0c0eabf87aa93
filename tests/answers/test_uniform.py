import copy

import pytest
import torch
from torch import nn

from advnas import Choice, Search
from advnas.answers.uniform import Halving, rank_uniform


class Shift(nn.Module):
    def __init__(self, by):
        super().__init__()
        self.by = by

    def forward(self, x):
        return x + self.by


def shifts(choices=2, norm=None):
    """The output is x plus the digits of a number to base 4: every architecture has a loss of its own."""
    parts = [
        Choice({str(digit): Shift(digit * 4.0**place) for digit in range(4)}, name=f"digit {place}")
        for place in range(choices)
    ]
    return nn.Sequential(nn.Linear(1, 1, bias=False), *parts, *([] if norm is None else [norm]))


def losses_at(values):
    """Minibatches of one number each; the loss is the output times it."""
    return iter([lambda model, value=value: (value * model(torch.zeros(4, 1))).mean() for value in values])


def number_of(architecture):
    return sum(int(digit) * 4 ** int(name.split()[1]) for name, digit in architecture.items())


# -- the plan


def test_every_round_keeps_the_better_half_and_doubles_the_minibatches_seen():
    assert list(Halving(16, 1, 8).rounds()) == [(16, 1), (8, 1), (4, 2), (2, 4)]
    assert Halving(16, 1, 8).passes == 16 + 8 + 8 + 8
    assert list(Halving(5, 2, 100).rounds()) == [(5, 2), (3, 2), (2, 4)]


def test_rounds_end_with_the_data():
    assert list(Halving(16, 1, 3).rounds()) == [(16, 1), (8, 1), (4, 1)]
    assert list(Halving(16, 8, 3).rounds()) == [(16, 3)]


def test_one_architecture_is_run_once_so_that_its_loss_is_known():
    assert list(Halving(1, 1, 8).rounds()) == [(1, 1)]


@pytest.mark.parametrize("passes", [1, 10, 272.5, 1000, 4080])
@pytest.mark.parametrize("available", [1, 7, 100])
def test_the_plan_is_the_smallest_that_costs_at_least_as_much(passes, available):
    plan = Halving.costing(passes, 10**9, available)
    assert plan.first == 1
    assert plan.passes >= passes
    assert plan.architectures == 1 or Halving(plan.architectures - 1, 1, available).passes < passes


def test_where_all_architectures_can_begin_the_first_round_gets_more_minibatches():
    plan = Halving.costing(1000, 64, 100)
    assert plan.architectures == 64
    assert plan.passes >= 1000 > Halving(64, plan.first - 1, 100).passes


def test_where_all_can_run_on_all_data_that_is_all_there_is_to_do():
    assert Halving.costing(10_000, 16, 7) == Halving(16, 7, 7)
    assert Halving.costing(10_000, 16, 7).passes == 16 * 7


# -- the ranking


def test_the_best_of_all_is_found_and_all_are_in_order():
    ranked = rank_uniform(Search(shifts(), "ranked_random"), losses_at([1.0] * 4), Halving(16, 4, 4))
    assert [number_of(one.architecture) for one in ranked] == list(range(16))
    assert [one.loss for one in ranked] == list(range(16))


def test_architectures_are_different_and_depend_on_the_seed_alone():
    plan = Halving(6, 1, 4)
    runs = [rank_uniform(Search(shifts(3), seed=seed), losses_at([1.0] * 4), plan) for seed in (0, 0, 1)]
    chosen = [{one.architecture for one in ranked} for ranked in runs]
    assert len(chosen[0]) == 6
    assert chosen[0] == chosen[1] != chosen[2]


def test_those_that_lasted_longer_come_first_with_the_mean_over_all_they_have_seen():
    ranked = rank_uniform(Search(shifts(), "ranked_random"), losses_at([1.0, 3.0, -1.0, -1.0]), Halving(16, 1, 4))
    assert [one.minibatches for one in ranked] == [4] * 4 + [2] * 4 + [1] * 8
    numbers = [number_of(one.architecture) for one in ranked]
    assert sorted(numbers[:4]) == [0, 1, 2, 3]  # the last two minibatches came too late for the others
    assert ranked[1].loss == number_of(ranked[1].architecture) * (1 + 3 - 1 - 1) / 4


def test_a_loss_that_is_no_number_is_the_worst():
    def loss_of(model):
        value = model(torch.zeros(4, 1)).mean()
        return value if value else value * torch.nan

    ranked = rank_uniform(Search(shifts(), "ranked_random"), iter([loss_of]), Halving(16, 1, 1))
    assert number_of(ranked[-1].architecture) == 0
    assert number_of(ranked[0].architecture) == 1


@pytest.mark.parametrize(("weights", "budget"), [("resident", None), ("host", None), ("disk", "1MB")])
def test_the_search_is_left_exactly_as_it_was(weights, budget):
    model = shifts(norm=nn.BatchNorm1d(1))
    search = Search(model, "ranked_random", weights=weights, memory_budget=budget)
    search.weight_step(lambda model: model(torch.randn(4, 1)).square().mean())
    before, modes = copy.deepcopy(search.state()), [part.training for part in search.model.modules()]
    rank_uniform(search, losses_at([1.0] * 4), Halving(16, 1, 4))
    after = search.state()
    for name, value in before["weights"]["model"].items():
        assert torch.equal(after["weights"]["model"][name], value)
    assert torch.equal(after["architecture"]["generator"], before["architecture"]["generator"])
    assert [part.training for part in search.model.modules()] == modes


def test_norms_use_the_statistics_of_the_batch_and_dropout_is_off():
    model = nn.Sequential(Choice({"a": nn.Identity(), "b": Shift(1.0)}), nn.BatchNorm1d(1), nn.Dropout(0.5))
    model[1].running_mean.fill_(100.0)
    batch = torch.tensor([[1.0], [3.0]])
    ranked = rank_uniform(
        Search(model, "ranked_random"), iter([lambda model: model(batch).square().mean()]), Halving(2, 1, 1)
    )
    assert [one.loss for one in ranked] == pytest.approx([1.0, 1.0], abs=1e-4)


def test_whoever_is_told_of_minibatches_may_stop_the_ranking():
    class Stop(Exception):
        pass

    def stop():
        raise Stop

    with pytest.raises(Stop):
        rank_uniform(Search(shifts()), losses_at([1.0] * 4), Halving(4, 1, 4), on_minibatch=stop)
