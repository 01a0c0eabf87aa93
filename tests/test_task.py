import pytest
import torch
from torch import nn
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
