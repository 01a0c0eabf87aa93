import math

import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional as F

from advnas import Choice, Search, Task, Zero
from advnas.answers import agreement
from advnas.answers.agreement import Agreement, interval, kendall, split_half
from advnas.retrain import Recipe


class Features(nn.Module):
    """The sum of what three choices make of one feature each."""

    def __init__(self, candidates):
        super().__init__()
        self.choices = nn.ModuleList(Choice(candidates(), name=name) for name in "xyz")

        self.bias = nn.Linear(1, 1)

    def forward(self, features):
        kept = [choice(one) for choice, one in zip(self.choices, features.split(1, dim=1), strict=True)]
        return sum(kept) + self.bias(torch.ones(1, 1))


def keep_or_drop():
    return {"keep": nn.Linear(1, 1), "drop": Zero()}


def regression():
    """The target is 2 x + 4 y + 8 z: every feature that is dropped costs another loss."""
    features = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    targets = (features @ torch.tensor([2.0, 4.0, 8.0])).unsqueeze(1)
    batches = list(zip(features.split(16), targets.split(16), strict=True))
    return Task(batches[:2], batches[2:], loss=lambda model, batch: F.mse_loss(model(batch[0]), batch[1]))


def searched(candidates=keep_or_drop, epochs=1):
    torch.manual_seed(0)
    search = Search(Features(candidates), "random", weight_optimizer=FAST.optimizer)
    search.run(regression(), epochs=epochs)
    return search


FAST = Recipe(optimizer=lambda weights: torch.optim.Adam(weights, lr=0.3))


class TestAgreement:
    def test_a_parent_that_knows_its_operations_ranks_as_training_alone_does(self):
        found = agreement(searched(epochs=120), regression(), epochs=60, recipe=FAST)
        assert found.differ
        assert found.agrees
        assert found.low < found.tau < found.high
        assert str(found).startswith(
            f"The shared weights rank architectures like training alone does: tau {found.tau:.2f}"
        )

    def test_a_parent_that_is_wrong_is_told_of(self):
        search = searched(epochs=120)
        with torch.no_grad():
            for choice in search.model.choices:
                choice.candidates[0].weight.neg_()  # what was learnt is turned around: dropping is better now
        found = agreement(search, regression(), epochs=60, recipe=FAST)
        assert found.differ
        assert not found.agrees
        assert str(found).startswith("The shared weights do not rank architectures like training alone does: tau -")
        assert "longer warm-up" in str(found)

    def test_copies_of_one_operation_teach_nothing(self):
        found = agreement(
            searched(lambda: {n: nn.Linear(1, 1) for n in "abc"}), regression(), epochs=2, recipe=FAST
        )
        assert not found.differ
        assert not found.agrees
        assert found.alike
        assert str(found).startswith("Little can be learnt here")

    def test_what_it_cost_and_saw_is_told(self):
        found = agreement(searched(), regression(), epochs=1, architectures=6, recipe=FAST)
        assert found.passes == 6 * 2
        assert len(found.architectures) == len(set(found.architectures)) == len(found.alone) == 6
        assert len(found.again) == 3
        told = found.to_json()
        assert told["tau"] == stats.kendalltau(told["shared"], told["alone"]).statistic
        assert told["architectures"][0] == dict(found.architectures[0])

    def test_the_search_is_left_as_it_was(self):
        search = searched()
        before = {name: value.clone() for name, value in search.model.state_dict().items()}
        agreement(search, regression(), epochs=1, architectures=5, recipe=FAST)
        assert all(torch.equal(value, before[name]) for name, value in search.model.state_dict().items())

    def test_the_draws_are_uniform_whatever_theta_has_learnt(self):
        search = searched()
        first = agreement(search, regression(), epochs=1, architectures=5, recipe=FAST).architectures
        search.theta.assign(torch.tensor([[9.0, 0.0], [0.0, 9.0], [9.0, 0.0]]))
        assert agreement(search, regression(), epochs=1, architectures=5, recipe=FAST).architectures == first

    def test_different_networks_are_trained(self):
        def half():
            act = Choice({one: layer() for one, layer in {"a": nn.ReLU, "b": nn.Tanh, "c": nn.Sigmoid}.items()})
            return {"keep": nn.Linear(1, 1), "drop": Zero(), "deep": nn.Sequential(nn.Linear(1, 1), act)}

        found = agreement(searched(half), regression(), epochs=1, architectures=12, recipe=FAST)
        networks = {str(searched(half).space.derive(one)) for one in found.architectures}
        assert len(networks) == len(found.architectures) == 12

    def test_too_few_architectures_are_refused(self):
        with pytest.raises(ValueError, match="architectures must be an integer of at least 5, got 4"):
            agreement(searched(), regression(), epochs=1, architectures=4)
        small = Search(nn.Sequential(Choice(keep_or_drop()), nn.Linear(1, 1)))
        with pytest.raises(ValueError, match="2 architectures, and a ranking needs at least 5"):
            agreement(small, regression(), epochs=1)


def told(alone, again, tau=0.2):
    """An agreement of these losses, whatever the shared weights say."""
    low, high = interval(tau, len(alone))
    return Agreement((), (), tuple(alone), tuple(again), tau, low, high, split_half=math.nan, epochs=5, passes=0)


def simulated(deviation, random):
    """Eight architectures whose deviation is so many times the noise's; a seed moves all of them alike."""
    losses = deviation * torch.randn(8, 1, generator=random) + torch.randn(1, 2, generator=random)
    first, second = (losses + torch.randn(8, 2, generator=random)).double().T.tolist()
    return told(first, second[:4])


class TestWhetherArchitecturesDiffer:
    def test_a_ranking_that_is_right_shows_it_whatever_the_noise(self):
        found = told([0.06, 0.7, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [0.5, 0.1, 0.6, 0.3], tau=0.93)
        assert not found.differ
        assert str(found).startswith("The shared weights rank architectures like training alone does: tau 0.93")

    def test_differences_that_noise_may_explain_are_open(self):
        found = told([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], [3.0, 1.0, 4.0, 3.0])
        assert not found.differ
        assert not found.alike
        assert str(found).startswith("Too few trainings to tell whether architectures differ: 8 architectures")
        assert "4 of them twice" in str(found)

    def test_differences_far_below_the_noise_are_told(self):
        found = told([1.0, 3.0, 1.1, 2.9, 2.0, 2.1, 1.9, 2.0], [3.0, 1.0, 2.9, 1.1])
        assert found.alike
        assert str(found).startswith(
            "Little can be learnt here: 8 architectures trained alone for 5 epochs differ by"
        )

    def test_what_a_seed_does_to_all_architectures_alike_is_no_noise(self):
        first = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
        assert told(first, [11.1, 12.0, 12.9, 14.0]).differ

    @pytest.mark.parametrize(
        ("deviation", "differ", "alike"),
        [(0.0, 0.05, 0.22), (1.0, 0.16, 0.05), (2.0, 0.46, 0.005)],  # two repeats of one: 0.03, 0.05, 0.12
    )
    def test_it_is_wrong_as_often_as_it_says_and_notices_what_it_says(self, deviation, differ, alike, monkeypatch):
        quantiles = {level: float(stats.f.ppf(level, 6, 3)) for level in (0.05, 0.95)}
        monkeypatch.setattr(Agreement, "_quantile", lambda self, level: quantiles[level])  # slow
        random = torch.Generator().manual_seed(0)
        found = [simulated(deviation, random) for _ in range(1000)]
        assert sum(one.differ for one in found) / 1000 == pytest.approx(differ, abs=0.04)
        assert sum(one.alike for one in found) / 1000 == pytest.approx(alike, abs=0.04)


class TestInterval:
    @pytest.mark.parametrize("tau", [-0.5, 0.0, 0.6])
    def test_it_holds_tau_and_shrinks_with_more_architectures(self, tau):
        wide, narrow = interval(tau, 8), interval(tau, 100)
        assert -1 < wide[0] < narrow[0] < tau < narrow[1] < wide[1] < 1

    def test_it_covers_the_truth_as_often_as_it_says(self):
        """Normal pairs with correlation rho have tau = 2/pi asin(rho)."""
        random, rho, count = torch.Generator().manual_seed(1), 0.6, 10
        truth, hits = 2 / math.pi * math.asin(rho), 0
        for _ in range(400):
            x, noise = torch.randn(2, count, generator=random)
            low, high = interval(kendall(x.tolist(), (rho * x + math.sqrt(1 - rho**2) * noise).tolist()), count)
            hits += low <= truth <= high
        assert 0.92 <= hits / 400 <= 0.98

    def test_a_perfect_agreement_has_an_interval_too(self):
        low, high = interval(1.0, 8)
        assert 0 < low < high < 1


def test_split_half_compares_every_other_minibatch_with_the_rest():
    assert split_half([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]) == pytest.approx(1)
    assert split_half([[1.0, 3.0], [2.0, 2.0], [3.0, 1.0]]) == pytest.approx(-1)
    assert math.isnan(split_half([[1.0], [2.0]]))
