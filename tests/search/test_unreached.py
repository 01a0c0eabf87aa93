"""A Choice that no forward calls is told by name; one that was merely not drawn is not."""

import warnings

import pytest
import torch
from torch import nn

from advnas import Choice, Search, Task
from advnas.search.unreached import UnreachedWarning, unreached, warn_unreached


def pair(name):
    return Choice({"tanh": nn.Tanh(), "linear": nn.Linear(2, 2)}, name=name)


class Forgetful(nn.Module):
    """Two decisions, of which the forward pass calls one."""

    def __init__(self):
        super().__init__()
        self.used, self.forgotten = pair("used"), pair("forgotten")

    def forward(self, features):
        return self.used(features)


def loss(model):
    return (model(torch.ones(3, 2)) ** 2).mean()


@pytest.mark.parametrize("strategy", ["contrast", "reinforce", "darts", "random"])
@pytest.mark.parametrize("step", ["weight_step", "architecture_step", "joint_step"])
def test_a_decision_that_the_loss_does_not_run_is_named(strategy, step):
    search = Search(Forgetful(), strategy, schedule="joint" if step == "joint_step" else "alternate")
    getattr(search, step)(loss)
    assert unreached(search) == ["forgotten"]
    with pytest.warns(UnreachedWarning, match="Never reached: forgotten. The loss does not run"):
        warn_unreached(search)


def test_nothing_is_known_before_the_first_step():
    assert unreached(Search(Forgetful())) == []


def test_a_decision_that_was_reached_once_is_not_named():
    search = Search(Forgetful())
    for module in (search.model, search.model.forgotten, search.model):
        search.weight_step(lambda model, part=module: loss(part))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_unreached(search)


def test_a_decision_inside_a_candidate_that_was_not_drawn_is_not_named():
    inside = nn.Sequential(pair("inner"), nn.Linear(2, 2))
    search = Search(nn.Sequential(Choice({"bare": nn.Linear(2, 2), "inside": inside}, name="outer")))
    search.theta.assign(torch.tensor([[90.0, 0.0], [0.0, 0.0]]))
    search.architecture_step(loss)
    assert search.parent.reached == {0}
    assert unreached(search) == []


def test_a_run_warns_of_them_when_it_ends():
    data = [torch.ones(3, 2)]
    task = Task(data, data, lambda model, batch: model(batch).square().mean())
    with pytest.warns(UnreachedWarning, match="Never reached: forgotten"):
        Search(Forgetful()).run(task, epochs=1)
