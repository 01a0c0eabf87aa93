"""Uses that are out of the ordinary work, or are refused in a sentence that says what to write instead."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils.data import DataLoader, IterableDataset

from advnas import Choice, Search, Task, gates
from advnas.answers import rank_architectures
from advnas.retrain import Recipe, retrain
from advnas.space import SearchSpace

X = torch.linspace(-1, 1, 6).reshape(3, 2)


def network(first=None):
    torch.manual_seed(0)
    middle = Choice({"linear": nn.Linear(2, 2), "skip": nn.Identity()}, name="middle")
    return nn.Sequential(nn.Linear(2, 2) if first is None else first, middle)


@pytest.fixture(params=[0, gates.gate._SMALL], ids=["as in large networks", "as in small ones"])
def both_kinds_of_gate(request, monkeypatch):
    """A gate of 1 on a small tensor is a multiplication; the tensors here are all small."""
    monkeypatch.setattr(gates.gate, "_SMALL", request.param)


def square(model):
    return model(X).square().sum()


def take_steps(search, loss):
    for _ in range(4):
        search.weight_step(loss)
        search.architecture_step(loss)


# Gradients and optimisers


def test_sparse_gradients_are_refused():
    search = Search(network(nn.Embedding(4, 2, sparse=True)))
    with pytest.raises(ValueError, match=r"shape \[4, 2\] is sparse.*sparse=False"):
        search.weight_step(lambda model: model(torch.tensor([1, 3])).square().sum())
    model = nn.Embedding(4, 2, sparse=True)
    ours = Task([torch.tensor([1])], [torch.tensor([1])], lambda model, batch: model(batch).square().sum())
    with pytest.raises(ValueError, match="sparse=False"):
        retrain(model, ours, epochs=1)


@pytest.mark.parametrize("which", ["weight_optimizer", "architecture_optimizer"])
def test_an_optimiser_that_computes_the_loss_itself_is_refused(which):
    with pytest.raises(ValueError, match=r"LBFGS computes the loss several times.*Write for example"):
        Search(network(), **{which: torch.optim.LBFGS})


def test_a_retraining_refuses_it_too():
    ours = Task([X], [X], lambda model, batch: square(model))
    with pytest.raises(ValueError, match="LBFGS computes the loss several times"):
        retrain(nn.Linear(2, 2), ours, epochs=1, recipe=Recipe(torch.optim.LBFGS))


# Transforms


def by_functional_call(model):
    return functional_call(model, dict(model.named_parameters()), (X,)).square().sum()


def by_vmap(model):
    return vmap(model)(X).square().sum()


def by_grad(model):
    weights = dict(model.named_parameters())
    slopes = grad(lambda own: functional_call(model, own, (X,)).square().sum())(weights)
    return sum(slope.square().sum() for slope in slopes.values())


@pytest.mark.usefixtures("both_kinds_of_gate")
@pytest.mark.parametrize("loss", [by_functional_call, by_vmap])
@pytest.mark.parametrize("strategy", ["advantage", "darts", "reinforce"])
def test_losses_by_transforms_give_the_slopes_of_plain_ones(loss, strategy):
    found = []
    for of in (square, loss):
        search = Search(network(), strategy, weight_optimizer=partial(torch.optim.SGD, lr=0.0), steps=8)
        take_steps(search, of)
        found.append(search.theta.logits())
    torch.testing.assert_close(*found)


@pytest.mark.usefixtures("both_kinds_of_gate")
@pytest.mark.parametrize("strategy", ["advantage", "darts"])
def test_a_loss_of_gradients_can_be_searched(strategy):
    take_steps(Search(network(), strategy, steps=8), by_grad)


@pytest.mark.parametrize("loss", [by_vmap, by_grad])
def test_rivals_inside_a_transform_are_refused(loss):
    with pytest.raises(TypeError, match=r"choice 'middle' inside a transform of torch.func.*strategy='advantage'"):
        Search(network(), "contrast").architecture_step(loss)


def test_rivals_in_a_functional_call_work():
    take_steps(Search(network(), "contrast", steps=8), by_functional_call)


# Losses that take gradients themselves


def by_slopes(model, batch=X, *, enabled=True):
    """A loss as of a force or of a differential equation: of the network's slope in its inputs."""
    with torch.set_grad_enabled(enabled or torch.is_grad_enabled()):
        x = batch.detach().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).tanh().sum(), x, create_graph=True)
        return (slope - 1).square().mean()


@pytest.mark.usefixtures("both_kinds_of_gate")
@pytest.mark.parametrize("strategy", ["advantage", "gdas", "darts", "snas", "reinforce", "exact_contrast"])
def test_a_loss_that_takes_gradients_can_be_searched(strategy):
    take_steps(Search(network(), strategy, steps=8), by_slopes)


def test_a_loss_that_takes_gradients_can_be_judged_and_retrained():
    task = Task([X], [X], by_slopes, metric=by_slopes)
    search = Search(network(), "advantage")
    search.run(task, epochs=4, progress=False)
    assert len(rank_architectures(search, task.validation, task.loss, count=2)) == 2
    assert len(retrain(search.derive(), task, epochs=2).history) == 2


@pytest.mark.parametrize("strategy", ["contrast", "proxyless", "nasp"])
def test_rivals_in_a_backward_pass_that_is_differentiated_are_refused(strategy):
    with pytest.raises(ValueError, match=r"differentiates through choice 'middle'.*Write strategy='advantage'\."):
        Search(network(), strategy).architecture_step(by_slopes)


JUDGED = {
    "an architecture step": lambda task: Search(network(), "reinforce").architecture_step(task.loss_on_x),
    "other draws": lambda task: Search(network(), "parsec").architecture_step(task.loss_on_x),
    "ranking": lambda task: rank_architectures(Search(network()), [X], task.loss, count=1),
    "retraining": lambda task: retrain(nn.Linear(2, 2), task, epochs=1),
}


class Judged(Task):
    def loss_on_x(self, model):
        return self.loss(model, X)


@pytest.mark.parametrize("judge", JUDGED.values(), ids=JUDGED)
def test_a_loss_that_takes_gradients_where_none_are_kept_is_told_what_to_write(judge):
    with pytest.raises(ValueError, match=r"takes gradients itself.*`with torch\.enable_grad\(\):`"):
        judge(Judged([X], [X], partial(by_slopes, enabled=False)))


# Data without a length


class Stream(IterableDataset):
    def __iter__(self):
        return iter(X)


def test_training_data_without_a_length_are_refused_in_a_search():
    stream = DataLoader(Stream(), batch_size=1)
    ours = Task(stream, stream, lambda model, batch: model(batch).square().sum())
    with pytest.raises(ValueError, match=r"must know the number of training minibatches, got DataLoader without"):
        Search(network()).run(ours, epochs=1)


def test_validation_data_without_a_length_work():
    stream = DataLoader(Stream(), batch_size=1)
    search = Search(network(), "contrast")
    search.run(Task([X] * 4, stream, lambda model, batch: model(batch).square().sum()), epochs=4)
    assert search.architecture_steps == 16


def test_a_retraining_takes_data_without_a_length():
    stream = DataLoader(Stream(), batch_size=1)
    ours = Task(stream, stream, lambda model, batch: model(batch).square().mean())
    assert len(retrain(nn.Linear(2, 2), ours, epochs=2).history) == 2


# Names and numbers


@pytest.mark.parametrize("name", [1, None, ("a",), b"conv", ""])
def test_names_are_texts(name):
    with pytest.raises(TypeError, match="A candidate is named by a text, got "):
        Choice({name: nn.Identity(), "other": nn.Identity()})
    if name is not None:
        with pytest.raises(TypeError, match="A choice is named by a text, got "):
            Choice({"one": nn.Identity()}, name=name)


@pytest.mark.parametrize("places", [("1", None), (None, "0")])
def test_a_choice_named_like_the_place_of_another_is_refused(places):
    model = nn.Sequential(*(Choice({"a": nn.Linear(1, 1), "b": nn.Identity()}, name=name) for name in places))
    with pytest.raises(ValueError, match=r"another without a name stands at this place.*another name"):
        SearchSpace(model)


def test_a_space_of_15000_choices_introduces_itself():
    many = (Choice({"a": nn.Identity(), "b": nn.Identity()}) for _ in range(15_000))
    assert repr(SearchSpace(nn.Sequential(*many))) == "SearchSpace(15000 decisions, about 10^4515 architectures)"
