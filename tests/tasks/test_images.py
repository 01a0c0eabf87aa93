import pytest
import torch

from advnas.tasks.images import Shuffled, accuracy, cross_entropy


def rows(batches):
    return torch.cat([x for x, _ in batches]).flatten(1).tolist()


def test_minibatches_hold_every_image_once_in_a_new_order_every_time():
    x = torch.arange(90.0).reshape(90, 1)
    batches = Shuffled(x, x[:, 0].long(), 30)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first, second = rows(batches), rows(batches)
    assert len(batches) == 3
    assert sorted(first) == sorted(second) == x.tolist()
    assert first != second
    with pytest.raises(ValueError, match="1 to 90 images here, got 91"):
        Shuffled(x, x[:, 0].long(), 91)


def test_accuracy_is_in_percent():
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    assert accuracy(torch.nn.Identity(), (x, torch.tensor([0, 1, 0, 1]))) == 75


def test_the_loss_is_the_mean_cross_entropy():
    batch = torch.zeros(3, 2), torch.tensor([0, 1, 0])
    assert cross_entropy(torch.nn.Identity(), batch).item() == pytest.approx(0.6931472)
