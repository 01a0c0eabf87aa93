import itertools

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from advnas.tasks.replay import Replay


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


def test_passes_differ_where_the_data_are_shuffled():
    first, second = take(loader(shuffle=True), 6).floor().chunk(2)
    assert sorted(first.flatten().tolist()) == sorted(second.flatten().tolist())
    assert not torch.equal(first, second)


def test_two_seeds_give_two_orders():
    other = Replay(DataLoader(Noisy(), batch_size=2, shuffle=True), seed=6, name="training")
    assert not torch.equal(take(loader(shuffle=True), 3), take(other, 3))


def test_global_randomness_is_left_alone():
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    take(loader(shuffle=True), 4)
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize(("batches", "count"), [([], 0), (iter([1, 2]), 2)], ids=["empty", "read only once"])
def test_data_that_run_out_are_named(batches, count):
    data = Replay(batches, seed=0, name="validation")
    assert len(list(itertools.islice(data, count))) == count
    with pytest.raises(ValueError, match="validation data are empty, or an iterator that can be read only once"):
        next(data)
