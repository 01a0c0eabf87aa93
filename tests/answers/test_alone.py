"""Trainings alone start from weights of their own, whoever makes them."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from advnas import Choice, Search, Task
from advnas.answers import agreement, halve
from advnas.retrain import retrain

BATCHES = [(one, one.sum(1, keepdim=True)) for one in torch.linspace(-1, 1, 32).reshape(4, 4, 2)]
TASK = Task(BATCHES[:2], BATCHES[2:], lambda model, batch: F.mse_loss(model(batch[0]), batch[1]))


class Shifted(nn.Module):
    """Two choices, and a weight that no layer holds."""

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.randn(2))
        choices = (Choice({one: nn.Linear(2, 2) for one in "abc"}, name=name) for name in "xy")
        self.body = nn.Sequential(*choices, nn.utils.parametrizations.weight_norm(nn.Linear(2, 1)))

    def forward(self, features):
        return self.body(features + self.shift)


@pytest.fixture
def started(monkeypatch):
    """The shifts that trainings started from."""
    seen = []

    def remember(model, *args, **options):
        seen.append(tuple(model.shift.tolist()))
        return retrain(model, *args, **options)

    monkeypatch.setattr("advnas.answers.alone.retrain", remember)
    return seen


def test_weights_that_no_layer_resets_are_made_by_a_function(started):
    search = Search(Shifted())
    found = agreement(search, TASK, epochs=1, architectures=5, fresh=Shifted)
    assert len(found.alone) == 5
    assert len(set(started)) == 2  # all rivals start alike, and their repetitions otherwise
    contest = halve(search, found.architectures[:4], TASK, epochs=1, fresh=Shifted)
    assert [len(one.scores) for one in contest.rounds] == [4, 2]
    assert len(set(started)) == 4  # one more per round


def test_the_function_is_followed_by_seeds_and_leaves_the_global_generator_alone(started):
    search = Search(Shifted())
    before = torch.get_rng_state()
    once, again = (halve(search, [search.argmax()], TASK, epochs=1, fresh=Shifted, seed=3) for _ in range(2))
    assert once == again
    assert started[0] == started[1]
    assert torch.equal(torch.get_rng_state(), before)


def test_without_it_the_error_says_what_cannot_be_reset():
    with pytest.raises(TypeError, match=r"no reset_parameters\(\) sets .*\. Write fresh=make_model"):
        halve(Search(Shifted()), [Search(Shifted()).argmax()], TASK, epochs=1)


class Pretrained(nn.Module):
    """A frozen layer, which makes no sense with other weights, below a choice."""

    def __init__(self):
        super().__init__()
        self.below = nn.Linear(2, 2).requires_grad_(False)
        self.shift = nn.Parameter(torch.randn(2), requires_grad=False)
        self.choice = Choice({one: nn.Linear(2, 1) for one in "abcde"}, name="x")

    def forward(self, features):
        return self.choice(self.below(features + self.shift))


def test_frozen_weights_are_those_of_the_search(monkeypatch):
    search, seen = Search(Pretrained(), "random"), []

    def remember(model, *args, **options):
        seen.append(model)
        return retrain(model, *args, **options)

    monkeypatch.setattr("advnas.answers.alone.retrain", remember)
    agreement(search, TASK, epochs=1, architectures=5)
    halve(search, [search.argmax()], TASK, epochs=1)
    assert len(seen) == 8
    for model in seen:
        assert torch.equal(model.below.weight, search.model.below.weight)
        assert torch.equal(model.shift, search.model.shift)
    assert len({model.choice.weight[0, 0].item() for model in seen}) == 3  # rivals, repetitions, contest
