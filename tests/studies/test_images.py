import pytest
import torch

from advnas.studies import images
from advnas.studies.images import Shuffled, accuracy, cifar10_images, digits
from advnas.tasks import cifar10


def rows(batches):
    return torch.cat([x for x, _ in batches]).flatten(1).tolist()


def test_no_digit_is_used_for_two_purposes():
    _, task = digits("random", 0)
    parts = [task.training.images, task.validation.images, task.test[0][0]]
    assert [len(part) for part in parts] == [700, 500, 597]


def test_all_strategies_of_a_seed_start_from_the_same_weights():
    searches = [digits(strategy, 3)[0] for strategy in ("advantage", "parsec", "enas")]
    first, *others = (list(search.model.state_dict().values()) for search in searches)
    for other in others:
        assert all(map(torch.equal, first, other))
    assert searches[1].strategy.examples == 32


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


def test_cifar10_is_augmented_for_training_and_not_for_the_test(monkeypatch):
    pixels = torch.randint(256, (1200, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    known = cifar10.Images(pixels, torch.arange(1200) % 10)
    monkeypatch.setattr(images, "_cifar10", lambda folder, part: known)
    monkeypatch.setattr(cifar10, "halves", lambda folder: (torch.arange(600), torch.arange(600, 1200)))
    _, task = cifar10_images("random", 0, images=64, batch=32)
    assert len(task.training) == 2
    x, y = next(iter(task.training))
    assert (x.shape, y.shape) == ((32, 3, 32, 32), (32,))
    assert torch.equal(task.test[0][0], task.test[0][0])
    assert len(task.test) == 3


@pytest.mark.parametrize(
    ("space", "decisions"), [("small_cells", 6), ("nasbench201", 6), ("darts", 28), ("mobile", 21)]
)
def test_every_space_for_images_takes_digits(space, decisions):
    search, task = digits("random", 0, space=space, batch=4)
    assert len(search.space.decisions) == decisions
    assert search.weight_step(lambda model: task.loss(model, next(iter(task.training)))).loss > 0


def test_a_space_nobody_knows_is_told():
    with pytest.raises(ValueError, match="must be one of small_cells, nasbench201, darts, mobile, got 'darts201'"):
        digits("random", 0, space="darts201")
