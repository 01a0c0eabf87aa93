import dataclasses
import math

import numpy as np
import pytest
import torch

from advnas import strategies
from advnas.paper.toy import PRESETS, ToySearch, ToySettings, curves_of, run_toy
from advnas.randomness import generator
from advnas.tasks.teacher_regression import TeacherRegression

TINY = ToySettings(iterations=20, trials=3, decisions=3, candidates=4, batch=8, learning_rate=0.05, held_out=32)
NAMES = [name for name in strategies.names() if strategies.get(name).takes_architecture_steps]


@pytest.fixture(scope="module")
def together():
    return run_toy(TINY, NAMES)


def test_there_is_one_loss_a_trial_and_measurement(together):
    assert list(together) == list(NAMES)
    for losses in together.values():
        assert len(losses) == 3  # before the first iteration, after 10, after 20
        assert all(len(row) == TINY.trials for row in losses)
        assert all(math.isfinite(loss) and loss >= 0 for row in losses for loss in row)


def test_all_strategies_start_from_the_same_answer(together):
    assert len({tuple(losses[0]) for losses in together.values()}) == 1


def test_a_run_is_reproducible_bit_for_bit(together):
    assert run_toy(TINY, NAMES) == together


def test_another_seed_gives_other_losses(together):
    other = run_toy(dataclasses.replace(TINY, seed=1), ["advantage"])
    assert other["advantage"][0] != together["advantage"][0]


@pytest.mark.parametrize("name", NAMES)
def test_a_strategy_does_not_notice_which_others_run(name, together):
    assert run_toy(TINY, [name])[name] == together[name]


def test_a_strategy_without_architecture_steps_has_nothing_to_do_here():
    with pytest.raises(ValueError, match=r"ranked_random takes none\. Leave it out"):
        run_toy(TINY, ["ranked_random"])


@pytest.mark.parametrize("name", NAMES)
def test_every_strategy_improves_on_its_start(name):
    settings = ToySettings(
        iterations=240, trials=6, decisions=4, candidates=4, batch=32, learning_rate=0.03, measure_every=240
    )
    first, last = run_toy(settings, [name])[name]
    assert np.mean(last) < 0.5 * np.mean(first)


def test_a_loss_of_0_means_that_the_teacher_was_found():
    settings = ToySettings(iterations=150, trials=4, decisions=2, candidates=3, batch=50, learning_rate=0.05)
    found = {}
    losses = run_toy(settings, ["exact_advantage"], lambda _, searches: found.update(searches))["exact_advantage"]
    task = TeacherRegression(trials=4, decisions=2, candidates=3, batch=50)
    right = (found["exact_advantage"].answer() == task.teacher).all(-1).all(-1)
    assert [loss == 0 for loss in losses[-1]] == right.tolist()
    assert right.any()


def test_progress_is_told_after_every_iteration():
    seen = []
    run_toy(TINY, ["darts", "random"], lambda iteration, searches: seen.append((iteration, list(searches))))
    assert seen == [(iteration, ["darts", "random"]) for iteration in range(TINY.iterations + 1)]


# A second implementation, in numpy and float64, of the search with the approximate advantage


class Independent:
    """Formulas from the paper, Adam from its own; only noise and minibatches are taken from the first."""

    def __init__(self, settings):
        self.settings = settings
        shape = (settings.trials, settings.decisions, settings.candidates)
        self.task = TeacherRegression(
            trials=shape[0], decisions=shape[1], candidates=shape[2], batch=settings.batch, seed=settings.seed
        )
        self.noise = generator(settings.seed)
        self.theta, self.mean, self.square = np.ones(shape), np.zeros(shape), np.zeros(shape)
        self.held_out = self.responses(settings.held_out)
        self.teacher = self.task.teacher.double().numpy()
        self.steps = 0

    def responses(self, size):
        """readout_i(tanh(filter_ij * x)) of the next minibatch: [trials, batch, decisions, candidates]."""
        patches = self.task.minibatch(size).patches.double().numpy().reshape(self.settings.trials, size, 16, 49)
        filters = self.task.filters.double().numpy().reshape(*self.theta.shape, 49)
        readouts = self.task.readouts.double().numpy()
        return np.einsum("tbpdc,tdp->tbdc", np.tanh(np.einsum("tbpx,tdcx->tbpdc", patches, filters)), readouts)

    def errors(self, responses, chosen):
        def predict(architecture):
            return np.einsum("tbdc,tdc->tb", responses, architecture) / self.settings.decisions

        return predict(chosen) - predict(self.teacher)

    def one_hot(self, scores):
        return np.eye(self.settings.candidates)[scores.argmax(-1)]

    def measure(self):
        return 100 * np.square(self.errors(self.held_out, self.one_hot(self.theta))).mean(1)

    def step(self):
        responses = self.responses(self.settings.batch)
        noise = torch.empty(self.theta.shape).exponential_(generator=self.noise).double().numpy()
        chosen = self.one_hot(self.theta - np.log(noise))
        errors = self.errors(responses, chosen)
        outputs = np.einsum("tbdc,tdc->tbd", responses, chosen)
        advantage = -(2 * errors[:, :, None] * outputs / self.settings.decisions).mean(1)
        mu = np.exp(self.theta) / np.exp(self.theta).sum(-1, keepdims=True)
        self.adam(-advantage[:, :, None] * (chosen - mu))
        return np.square(errors).mean(1)

    def adam(self, descent):
        self.steps += 1
        (one, two), rate = self.settings.betas, self.settings.learning_rate
        self.mean = one * self.mean + (1 - one) * descent
        self.square = two * self.square + (1 - two) * descent**2
        mean, square = self.mean / (1 - one**self.steps), self.square / (1 - two**self.steps)
        self.theta = self.theta - rate * mean / (np.sqrt(square) + 1e-8)


def test_the_search_with_the_advantage_agrees_with_a_second_implementation():
    settings = dataclasses.replace(TINY, iterations=60)
    thetas, losses = [], []

    def record(_, searches):
        thetas.append(searches["advantage"].logits.double().numpy())
        losses.append(searches["advantage"].loss.double().numpy())

    curve = run_toy(settings, ["advantage"], record)["advantage"]
    other, measured = Independent(settings), []
    for iteration in range(settings.iterations + 1):
        if iteration % settings.measure_every == 0:
            measured.append(other.measure())
        if iteration < settings.iterations:
            np.testing.assert_allclose(losses[iteration], other.step(), rtol=1e-3, atol=1e-7)
            np.testing.assert_allclose(thetas[iteration], other.theta, atol=2e-3)
    np.testing.assert_allclose(curve, measured, rtol=1e-3, atol=1e-6)
    assert np.abs(other.theta - 1).max() > 0.5


# Settings and curves


def test_the_presets_are_the_papers_and_a_short_one():
    """But for the trials: the paper has 10, which is too few to tell the strategies apart."""
    paper = PRESETS["paper"]
    assert dataclasses.replace(paper, trials=10) == ToySettings()
    assert (paper.iterations, paper.seed, paper.decisions, paper.candidates, paper.batch) == (2000, 0, 10, 10, 100)
    assert paper.trials == 100
    assert (paper.learning_rate, paper.betas) == (0.001, (0.9, 0.999))
    assert (PRESETS["quick"].iterations, PRESETS["quick"].trials) == (300, 3)


@pytest.mark.parametrize("name", ["iterations", "trials", "decisions", "candidates", "batch", "held_out"])
def test_counts_are_positive(name):
    with pytest.raises(ValueError, match=f"{name} must be a positive integer, got 0"):
        ToySettings(**{name: 0})


def test_strategies_are_told_the_size_of_a_minibatch_and_the_learning_rate():
    task = TeacherRegression(trials=1, batch=TINY.batch)
    assert ToySearch("parsec", task, TINY).strategy == strategies.get("parsec", examples=TINY.batch)
    assert ToySearch("enas", task, TINY).strategy == strategies.get("enas", learning_rate=TINY.learning_rate)
    assert ToySearch("darts", task, TINY).strategy == strategies.get("darts")


def test_curves_are_medians_and_quartiles_over_the_trials():
    losses = [[4.0, 1.0, 2.0, 3.0, 5.0], [0.0, 8.0, 8.0, 8.0, 8.0], [2.0] * 5]
    curves = curves_of(dataclasses.replace(TINY, trials=5), losses)
    assert curves == {
        "iterations": [0, 10, 20],
        "median": [3.0, 8.0, 2.0],
        "q25": [2.0, 8.0, 2.0],
        "q75": [4.0, 8.0, 2.0],
        "final": [2.0] * 5,
    }
