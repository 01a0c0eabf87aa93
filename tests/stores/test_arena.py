import copy
import io
import mmap

import pytest
import torch
from torch import nn

from advnas.stores import arena
from advnas.stores.arena import Arena


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(5),
        torch.randn(3, 4, 5, 5).to(memory_format=torch.channels_last),
        torch.randn(4, 3).t(),
        torch.randn(7, dtype=torch.bfloat16),
        torch.tensor(2.5),
        torch.ones(3, dtype=torch.bool),
    ],
    ids=lambda tensor: f"{tensor.dtype} {list(tensor.shape)} {list(tensor.stride())}",
)
def test_a_placed_tensor_has_the_same_values_and_layout_and_a_storage_of_its_own(tmp_path, tensor):
    arena = Arena(tmp_path)
    arena.place(torch.ones(3))
    backing = arena.place(tensor)
    assert torch.equal(backing, tensor)
    assert (backing.dtype, backing.stride()) == (tensor.dtype, tensor.stride())
    assert backing.untyped_storage().nbytes() == tensor.nbytes
    assert backing.data_ptr() % 64 == 0
    assert arena.holds(backing)
    assert not arena.holds(tensor)


def test_tensors_do_not_overlap_and_outlive_the_arena(tmp_path):
    arena = Arena(tmp_path)
    backings = [arena.place(torch.full((n,), float(n))) for n in range(1, 200)]
    del arena
    assert all((backing == n).all() and len(backing) == n for n, backing in enumerate(backings, start=1))


def test_the_file_grows_by_mappings_that_grow(tmp_path, monkeypatch):
    monkeypatch.setattr(arena, "_SMALLEST", mmap.ALLOCATIONGRANULARITY)
    one = Arena(tmp_path)
    backings = [one.place(torch.full((1000,), n)) for n in range(300)]
    assert 1 < len(one._mappings) < 12
    one.release(backings)
    one.fetch(backings)
    assert all(one.holds(backing) and (backing == n).all() for n, backing in enumerate(backings))


def test_a_tensor_larger_than_any_mapping_gets_one_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(arena, "_SMALLEST", mmap.ALLOCATIONGRANULARITY)
    monkeypatch.setattr(arena, "_LARGEST", mmap.ALLOCATIONGRANULARITY)
    backing = Arena(tmp_path).place(torch.arange(100_000))
    assert torch.equal(backing, torch.arange(100_000))


def test_released_pages_leave_the_process_and_keep_their_numbers(tmp_path, resident_bytes):
    arena = Arena(tmp_path)
    before = resident_bytes()
    backing = arena.place(torch.ones(2_000_000))
    assert resident_bytes() > before + 7_000_000
    arena.release([backing])
    assert resident_bytes() < before + 1_000_000
    assert (backing == 1).all()
    arena.release_all()
    assert resident_bytes() < before + 1_000_000


def test_nothing_is_left_in_the_folder(tmp_path):
    arena = Arena(tmp_path)
    arena.place(torch.ones(10))
    assert list(tmp_path.iterdir()) == []


def test_a_placed_parameter_can_be_copied_saved_and_trained(tmp_path):
    arena = Arena(tmp_path)
    layer = nn.Linear(3, 3)
    layer.weight.data = arena.place(layer.weight.data)
    twin = copy.deepcopy(layer)
    assert not arena.holds(twin.weight)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    assert len(file.getvalue()) < 10_000  # the tensor, not the mapping around it
    layer(torch.ones(1, 3)).sum().backward()
    torch.optim.SGD(layer.parameters(), lr=1.0).step()
    assert arena.holds(layer.weight)
    assert torch.equal(layer.weight, twin.weight - 1)


def test_a_disk_without_room_is_an_error_and_no_crash(tmp_path):
    with pytest.raises(OSError, match=r"No space left|File too large"):
        Arena(tmp_path)._grow(2**60)
