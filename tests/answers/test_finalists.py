import itertools
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from advnas import Architecture, Choice, Search, Task, Zero
from advnas.answers import Scored, finalists, halve
from advnas.answers.finalists import Round
from advnas.retrain import Epoch, Recipe, Retrained

FAST = Recipe(optimizer=lambda weights: torch.optim.Adam(weights, lr=0.3))


class Features(nn.Module):
    """The sum of the features that three choices keep, each with a weight of its own."""

    def __init__(self):
        super().__init__()
        self.choices = nn.ModuleList(Choice({"keep": nn.Linear(1, 1), "drop": Zero()}, name=name) for name in "xyz")

        self.bias = nn.Linear(1, 1)

    def forward(self, features):
        kept = [choice(one) for choice, one in zip(self.choices, features.split(1, dim=1), strict=True)]
        return sum(kept) + self.bias(torch.ones(1, 1))


def regression(loss=lambda model, batch: F.mse_loss(model(batch[0]), batch[1])):
    """The target is 2 x + 4 y + 8 z: every feature that is dropped costs another loss."""
    features = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    targets = (features @ torch.tensor([2.0, 4.0, 8.0])).unsqueeze(1)
    batches = list(zip(features.split(16), targets.split(16), strict=True))
    return Task(batches[:2], batches[2:], loss=loss)


def searched():
    torch.manual_seed(0)
    search = Search(Features(), "reinforce", weight_optimizer=FAST.optimizer)
    search.run(regression(), epochs=120, warmup=60)
    return search


KEEP = Architecture({"x": "keep", "y": "keep", "z": "keep"})
DROP = Architecture({"x": "drop", "y": "drop", "z": "drop"})


def trained_to(score):
    epoch = Epoch(1, 0.5, score)
    return Retrained(nn.Identity(), epoch, (epoch,))


class TestFinalists:
    def test_the_best_proposals_come_first_and_each_once(self):
        found = finalists(searched(), regression(), 4)
        scores = [one.score for one in found.ranked]
        assert found.ranked[0].architecture == KEEP
        assert scores == sorted(scores)
        assert len({one.architecture for one in found.ranked}) == 4

    def test_a_bad_argmax_is_refined(self):
        search = searched()
        search.theta.assign(torch.tensor([[0.0, 9.0]] * 3))
        assert search.argmax() == DROP
        found = finalists(search, regression(), 8, draws=1)
        assert {KEEP, DROP} <= {one.architecture for one in found.ranked}
        assert found.ranked[0].architecture == KEEP
        assert found.ranked[-1].architecture == DROP

    def test_what_it_took_is_told(self):
        taken = []

        def counting(model, batch):
            taken.append(batch)
            return F.mse_loss(model(batch[0]), batch[1])

        assert finalists(searched(), regression(counting), 2).passes == len(taken) > 0

    @pytest.mark.parametrize("arguments", [{"k": 0}, {"draws": 0}])
    def test_counts_are_positive(self, arguments):
        with pytest.raises(ValueError, match="must be a positive integer, got 0"):
            finalists(Search(Features()), regression(), **arguments)


class TestHalve:
    def test_the_better_half_goes_on_and_trains_for_twice_as_long(self):
        entrants = [DROP, Architecture({**KEEP, "z": "drop"}), Architecture({**KEEP, "x": "drop"}), KEEP]
        contest = halve(Search(Features()), entrants, regression(), epochs=60, recipe=FAST)
        assert [(len(one.architectures), one.epochs) for one in contest.rounds] == [(4, 60), (2, 120)]
        assert contest.rounds[1].architectures == (KEEP, entrants[2])
        assert contest.winner == KEEP
        assert contest.epochs == 4 * 60 + 2 * 120

    @pytest.mark.parametrize(
        ("count", "costs"), [(2, [2]), (4, [4, 4]), (8, [8, 8, 8]), (6, [6, 6, 8]), (5, [5, 6, 8])]
    )
    def test_later_rounds_cost_as_much_as_the_first_or_less_than_twice_as_much(self, count, costs, monkeypatch):
        monkeypatch.setattr("advnas.answers.alone.retrain", lambda model, task, **asked: trained_to(0.5))
        space = [dict(zip("xyz", one, strict=True)) for one in itertools.product(("keep", "drop"), repeat=3)]
        contest = halve(Search(Features()), list(map(Architecture, space))[:count], regression(), epochs=1)
        assert [one.epochs * len(one.architectures) for one in contest.rounds] == costs

    def test_a_single_one_is_trained_once(self):
        contest = halve(Search(Features()), [KEEP, KEEP], regression(), epochs=1)
        assert [one.epochs for one in contest.rounds] == [1]

    def test_a_score_that_is_not_a_number_never_goes_on(self):
        entrants = (DROP, KEEP, Architecture({**KEEP, "x": "drop"}), Architecture({**KEEP, "y": "drop"}))
        assert Round(entrants, 1, (math.nan, 0.2, 0.1, 0.3)).better_half == [entrants[2], KEEP]
        assert Round(entrants, 1, (math.nan, math.nan, math.nan, 0.3)).better_half == [entrants[3]]

    def test_a_diverged_training_is_told_and_out(self, monkeypatch):
        scores = iter([math.nan, 0.5])
        monkeypatch.setattr("advnas.answers.alone.retrain", lambda model, task, **asked: trained_to(next(scores)))
        with pytest.warns(UserWarning, match="The scores of 1 of 2 architectures of the contest are not numbers"):
            contest = halve(Search(Features()), [KEEP, DROP], regression(), epochs=1)
        assert contest.winner == DROP

    def test_nobody_wins_where_all_have_diverged(self, monkeypatch):
        monkeypatch.setattr("advnas.answers.alone.retrain", lambda model, task, **asked: trained_to(math.nan))
        with pytest.raises(ValueError, match="so none can win"):
            halve(Search(Features()), [KEEP, DROP], regression(), epochs=1)

    def test_architectures_that_are_the_same_network_are_trained_once(self, monkeypatch):
        monkeypatch.setattr("advnas.answers.alone.retrain", lambda model, task, **asked: trained_to(0.5))
        act = Choice({"relu": nn.ReLU(), "tanh": nn.Tanh()}, name="act")
        block = Choice({"plain": nn.Identity(), "mlp": nn.Sequential(nn.Linear(3, 3), act)}, name="block")
        search = Search(nn.Sequential(block, nn.Linear(3, 1)))
        contest = halve(search, list(search.space.architectures()), regression(), epochs=1)
        plain, relu, tanh = contest.rounds[0].architectures
        assert [dict(one) for one in (plain, relu, tanh)] == [
            {"block": "plain", "act": "relu"},
            {"block": "mlp", "act": "relu"},
            {"block": "mlp", "act": "tanh"},
        ]

    def test_answers_in_place_of_architectures_are_told_before_any_training(self):
        with pytest.raises(TypeError, match=r"got a Scored\. Write its \.architecture"):
            halve(Search(Features()), [Scored(KEEP, 0.5, "argmax")], regression(), epochs=1)

    def test_none_are_refused(self):
        with pytest.raises(ValueError, match="at least one architecture"):
            halve(Search(Features()), [], regression(), epochs=1)
