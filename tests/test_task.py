import torch
from torch import nn

from advnas.task import mean_over


def share_of_ones(model, batch):
    return model(batch).mean().item()


def test_a_measure_is_a_mean_over_minibatches_and_that_over_the_examples_where_they_have_one_size():
    data = torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0])
    assert mean_over(nn.Identity(), data.split(4), share_of_ones) == 0.5
    assert mean_over(nn.Identity(), [data], share_of_ones) == data.mean().item()
    assert mean_over(nn.Identity(), data[:4].split(2), share_of_ones) == 1.0
