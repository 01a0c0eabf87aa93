"""A step that teaches little or nothing is told, once per search: in evaluation mode, or after the last one."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import ExponentialLR

from advnas import Choice, Search, Task
from advnas.search import EvaluationModeWarning, StepsOverWarning, constant

X = torch.linspace(-1, 1, 24).reshape(8, 3)


def network():
    choice = Choice({"linear": nn.Linear(4, 4), "skip": nn.Identity()}, name="edge")
    return nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), choice, nn.Linear(4, 1))


def loss_of(model):
    return F.mse_loss(model(X), torch.ones(8, 1))


def make_loss():
    return loss_of


def warnings_of(function):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        function()
    return [(one.category, one.filename == __file__) for one in found]


# Evaluation mode


@pytest.mark.parametrize("kind", ["weight_step", "joint_step"])
def test_a_model_in_evaluation_mode_is_told_once_per_search(kind):
    search = Search(network().eval())
    assert warnings_of(lambda: getattr(search, kind)(loss_of)) == [(EvaluationModeWarning, True)]
    assert warnings_of(lambda: getattr(search, kind)(loss_of)) == []
    with pytest.warns(EvaluationModeWarning, match=r"dropout is off.*Write model\.train\(\) before"):
        getattr(Search(search.model), kind)(loss_of)


def test_a_run_tells_it_too():
    task = Task([X], [X], lambda model, batch: model(batch).square().mean())
    with pytest.warns(EvaluationModeWarning):
        Search(network().eval(), "random").run(task, epochs=1, progress=False)


def test_parts_in_evaluation_mode_and_architecture_steps_in_it_are_for_people_to_decide():
    search = Search(network())
    search.model[1].eval()
    search.weight_step(loss_of)
    search.model.eval()
    search.architecture_step(loss_of)
    assert search.warned == set()


# After the last step


@pytest.mark.parametrize("schedule", ["alternate", "joint"])
def test_a_step_after_the_last_one_is_told_once(schedule):
    search = Search(network(), steps=3, schedule=schedule)
    for _ in range(3):
        search.turn(loss_of, make_loss)
    assert search.warned == set(), "the last one moves the weights"
    with pytest.warns(StepsOverWarning, match="all of its 3 steps, .* of the weights and theta is 0 .* not epochs"):
        search.turn(loss_of, make_loss)
    assert warnings_of(lambda: search.turn(loss_of, make_loss)) == []


def test_a_search_that_is_continued_after_its_last_step_is_told_too():
    other = Search(network(), steps=3)
    state = Search(network(), steps=3).state()
    state["weights"]["steps"] = 7
    other.restore(state)
    with pytest.warns(StepsOverWarning, match="of the weights is 0"):
        other.weight_step(loss_of)


def under_a_scheduler():
    search = Search(network(), "random", steps=2)
    ExponentialLR(search.weight_optimizer, gamma=0.9)
    return search


@pytest.mark.parametrize(
    "make",
    [
        lambda: Search(network()),
        lambda: Search(network(), steps=2, annealing=constant),
        lambda: Search(network(), steps=2, annealing=lambda progress: 1 - progress / 2),
        under_a_scheduler,
    ],
)
def test_rates_that_do_not_fall_to_0_have_no_last_step(make):
    search = make()
    for _ in range(4):
        search.turn(loss_of, make_loss)
    assert search.warned == set()


def test_theta_may_stop_alone():
    search = Search(network(), steps=2)
    ExponentialLR(search.weight_optimizer, gamma=0.9)
    for _ in range(2):
        search.turn(loss_of, make_loss)
    with pytest.warns(StepsOverWarning, match="the learning rate of theta is 0"):
        search.turn(loss_of, make_loss)


def test_a_run_that_is_over_goes_on_with_another_length():
    task = Task([X] * 3, [X] * 3, lambda model, batch: model(batch).square().mean())
    search = Search(network(), "random", steps=1)
    search.run(task, epochs=2, progress=False)
    with pytest.raises(ValueError, match=r"set_length\(MORE\)"):
        search.run(task, epochs=2, progress=False)
    search.progress.set_length(9)
    search.turn(loss_of, make_loss)
    assert search.warned == set()
