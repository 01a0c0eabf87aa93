import itertools
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset

from advnas import Choice, Search, Task
from advnas.search.data import Replay, Replayed
from advnas.search.device import on_device


class Noisy(Dataset):
    """Augments by torch's global generator, as most datasets do."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return index + torch.rand(())


def loader(**options):
    return Replay(DataLoader(Noisy(), batch_size=2, **options), seed=5, name="training")


def take(data, count):
    return torch.stack(list(itertools.islice(data, count)))


@pytest.mark.parametrize("shuffle", [True, False])
def test_entering_in_the_middle_of_a_pass_gives_what_would_have_come(shuffle):
    whole = loader(shuffle=shuffle)
    expected = take(whole, 8)
    assert whole.position == (2, 2)
    for start, position in enumerate(itertools.product(range(2), range(3))):
        torch.manual_seed(start)  # whatever happened in between
        data = loader(shuffle=shuffle)
        data.enter(position)
        assert torch.equal(take(data, 8 - start), expected[start:])


@pytest.mark.parametrize("start", [1, 3])
def test_persistent_workers_give_what_others_give(start):
    """Also after a stop, after a look at the first minibatch, and where the loader has been read before."""
    expected = take(loader(shuffle=True, num_workers=1), 6)
    batches = DataLoader(Noisy(), batch_size=2, shuffle=True, num_workers=1, persistent_workers=True)
    list(batches)
    data = Replay(batches, seed=5, name="training")
    data.enter(divmod(start, 3))
    first, second = next(data), data.first()
    assert torch.equal(first, expected[start])
    assert torch.equal(second, expected[0])
    assert torch.equal(take(data, 5 - start), expected[start + 1 :])


def test_passes_differ_where_the_data_are_shuffled():
    first, second = take(loader(shuffle=True), 6).floor().chunk(2)
    assert sorted(first.flatten().tolist()) == sorted(second.flatten().tolist())
    assert not torch.equal(first, second)


def test_two_seeds_give_two_orders():
    other = Replay(DataLoader(Noisy(), batch_size=2, shuffle=True), seed=6, name="training")
    assert not torch.equal(take(loader(shuffle=True), 3), take(other, 3))


class Unsized(IterableDataset):
    """Has no length, and draws numbers while it is read."""

    def __iter__(self):
        return (torch.rand(()) for _ in range(4))


@pytest.mark.parametrize(
    "read", [lambda: take(loader(shuffle=True), 4), lambda: Replay(Unsized(), seed=5, name="training").per_pass()]
)
def test_global_randomness_is_left_alone(read):
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    read()
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize(("batches", "count"), [([], 0), (iter([1, 2]), 2)], ids=["empty", "read only once"])
def test_data_that_run_out_are_named(batches, count):
    data = Replay(batches, seed=0, name="validation")
    assert len(list(itertools.islice(data, count))) == count
    with pytest.raises(ValueError, match="validation data are empty, or an iterator that can be read only once"):
        next(data)


@pytest.mark.parametrize("size", [2, 3])
def test_processes_that_share_the_data_get_every_minibatch_once(size):
    whole = take(loader(shuffle=True), 6)
    batches = DataLoader(Noisy(), batch_size=2, shuffle=True)
    parts = [Replay(batches, seed=5, name="training", share=(rank, size)) for rank in range(size)]
    per_pass = 3 // size
    shares = [take(part, 2 * per_pass) for part in parts]
    for number in range(2):
        mine = [share[number * per_pass + place] for place in range(per_pass) for share in shares]
        first = 3 * number
        assert torch.equal(torch.stack(mine), whole[first : first + per_pass * size])
    assert {part.position for part in parts} == {(1, per_pass)}


def test_a_process_that_shares_the_data_can_enter_in_the_middle():
    batches = list(range(12))
    part = Replay(batches, seed=5, name="training", share=(1, 3))
    seen = list(itertools.islice(part, 6))
    assert seen == [1, 4, 7, 10, 1, 4]
    again = Replay(batches, seed=5, name="training", share=(1, 3))
    again.enter((1, 1))
    assert next(again) == 4


def test_fewer_minibatches_than_processes_are_named():
    with pytest.raises(ValueError, match="fewer minibatches than the 3 processes that share them"):
        next(Replay([1, 2], seed=0, name="validation", share=(0, 3)))


@pytest.mark.parametrize("wrong", [F.cross_entropy, F.mse_loss])
def test_a_loss_that_is_given_something_else_is_told_how_it_is_called(wrong):
    data = [torch.ones(2, 1)]
    search = Search(nn.Sequential(Choice({"a": nn.Linear(1, 1), "b": nn.Identity()})))
    with pytest.raises((TypeError, AttributeError)) as caught:
        search.run(Task(data, data, partial(wrong, reduction="sum")), epochs=1, progress=False)
    called, where = caught.value.__notes__
    assert called == "The loss is called as loss(model, batch), here with a Sequential and a Tensor."
    assert where.startswith("This happened in weight step 1, running")


class Counted:
    """A loss that numbers its minibatches."""

    def __init__(self):
        self.count = 0

    def __call__(self, model, batch):
        self.count += 1
        return torch.tensor(self.count)

    def state(self):
        return {"count": self.count}

    def restore(self, state):
        self.count = state["count"]


@pytest.mark.parametrize("wrapped", [False, True])
def test_what_a_loss_carries_along_is_saved_with_the_position(wrapped):
    data = [torch.zeros(1)]

    def replayed(loss):
        task = Task(data, data, loss)
        return Replayed.of(on_device(task, "cpu") if wrapped else task, seed=0)

    before, loss = replayed(Counted()), Counted()
    before.loss(None, data[0])
    replayed(loss).restore(before.state())
    assert loss.count == 1
    with pytest.raises(ValueError, match="the position in the data has no 'loss'"):
        replayed(loss).restore(replayed(lambda model, batch: batch).state())
