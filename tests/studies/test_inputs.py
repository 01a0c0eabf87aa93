"""What a loss calls the network with, for costs and for files."""

import pytest
import torch
from torch import nn

from advnas import Choice, Search, Task
from advnas.studies.inputs import called_with, example_inputs, one_example, why_no_file

X = torch.linspace(-1, 1, 16).reshape(4, 4)
BATCHES = [(X, X.sum(1, keepdim=True))]


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(Choice({"skip": nn.Identity(), "linear": nn.Linear(4, 4)}, name="c"))

    def forward(self, features, mask=None, verbose=False, scale=1.0):
        features = features if mask is None else features * mask
        return scale * self.body(features)


@pytest.fixture
def search():
    made = Search(Masked(), "random")
    with made.space.running({"c": "skip"}):
        yield made


def task(of):
    return Task(BATCHES, BATCHES, lambda model, batch: of(model, batch[0]).mean())


def test_the_example_is_what_the_loss_passes_to_the_model(search):
    (example,) = example_inputs(search.model, task(lambda model, x: model(x)))
    assert torch.equal(example, X)


def test_a_loss_that_does_not_call_the_model_is_told(search):
    with pytest.raises(ValueError, match="does not call the model"):
        example_inputs(search.model, Task(BATCHES, BATCHES, lambda model, batch: torch.zeros(())))


def test_tensors_by_name_are_put_in_order_where_there_is_no_gap(search):
    by_name = task(lambda model, x: model(mask=x > 0, features=x))
    features, mask = example_inputs(search.model, by_name)
    assert torch.equal(features, X)
    assert torch.equal(mask, X > 0)
    assert why_no_file(search.model, by_name) == ""


@pytest.mark.parametrize("more", [{"verbose": True}, {"scale": torch.ones(())}, {"mask": None}])
def test_more_than_tensors_in_order_is_refused_for_files_only(more, search):
    called = task(lambda model, x: model(features=x, **more))
    with pytest.raises(ValueError, match=r"more than tensors in order \(features: Tensor, .*a file cannot take"):
        example_inputs(search.model, called)
    assert "which a file cannot take" in why_no_file(search.model, called)
    assert called_with(search.model, called).kwargs.keys() == {"features", *more}


def test_one_example_has_a_batch_of_one_in_every_tensor(search):
    args, kwargs = one_example(search, task(lambda model, x: model(x, mask=x > 0, scale=torch.ones(()))))
    assert args[0].shape == kwargs["mask"].shape == (1, 4)
    assert kwargs["scale"].shape == ()
