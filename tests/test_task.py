from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from advnas.task import Task, mean_over


def share_of_ones(model, batch):
    return model(batch).mean().item()


def test_a_measure_is_a_mean_over_minibatches_and_that_over_the_examples_where_they_have_one_size():
    data = torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0])
    assert mean_over(nn.Identity(), data.split(4), share_of_ones) == 0.5
    assert mean_over(nn.Identity(), [data], share_of_ones) == data.mean().item()
    assert mean_over(nn.Identity(), data[:4].split(2), share_of_ones) == 1.0


def generated():
    yield torch.ones(2)


class OwnLoader:
    """Begins anew in __iter__, as some loaders do that are iterators themselves."""

    def __iter__(self):
        self.left = 2
        return self

    def __next__(self):
        if not self.left:
            raise StopIteration
        self.left -= 1
        return torch.ones(2)

    def __len__(self):
        return 2


DATA = [torch.ones(2)]


@pytest.mark.parametrize("name", ["training", "validation", "test"])
@pytest.mark.parametrize("batches", [generated(), iter(DATA), iter(DataLoader(DATA)), map(abs, DATA), zip(DATA)])
def test_data_that_can_be_read_only_once_are_refused_at_once(name, batches):
    given = {"training": DATA, "validation": DATA, name: batches}
    message = rf"{type(batches).__name__} can be read only once, and the {name} data .* Pass a list, a DataLoader"
    with pytest.raises(ValueError, match=message):
        Task(**given, loss=share_of_ones)


def test_loaders_that_begin_anew_are_no_iterators():
    for batches in (DataLoader(DATA), OwnLoader(), (), DATA):
        Task(batches, batches, share_of_ones, batches)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (
            F.cross_entropy,
            r"cross_entropy takes the outputs of a model\. Write def loss\(model, batch\): return",
        ),
        (nn.CrossEntropyLoss(), "CrossEntropyLoss takes the outputs"),
        (lambda model, x, y: 0.0, r"<lambda> does not allow: missing .*'y'\. Write def loss\(model, batch\)"),
        (lambda model: 0.0, "too many positional arguments"),
        (0.5, "float does not allow: 0.5 is not a callable object"),
    ],
)
def test_a_loss_is_called_with_a_model_and_a_minibatch(loss, message):
    with pytest.raises(TypeError, match=rf"loss of a task is called as loss\(model, batch\).*{message}"):
        Task(DATA, DATA, loss)


def test_a_metric_is_called_with_them_too():
    with pytest.raises(TypeError, match=r"metric\(model, batch\), which .*Write def metric\(model, batch\):"):
        Task(DATA, DATA, share_of_ones, metric=lambda outputs: 0.0)


@pytest.mark.parametrize(
    "loss", [partial(F.mse_loss), max, nn.Identity(), lambda *args: 0.0, lambda model, batch, scale=1.0: 0.0]
)
def test_a_loss_may_be_anything_that_can_be_called_so(loss):
    Task(DATA, DATA, loss)
