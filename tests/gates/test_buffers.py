"""Buffers are as they were, whatever moved them, and nothing else is computed for it."""

import pytest
import torch
from torch import nn

from advnas.gates.buffers import BufferSnapshot, still


class MovesEverything(nn.Module):
    """Buffers of a user's own, moved in every way there is."""

    def __init__(self):
        super().__init__()
        for name in ("in_place", "by_data", "replaced"):
            self.register_buffer(name, torch.ones(3))
        self.register_buffer("counter", torch.zeros((), dtype=torch.long))
        self.register_buffer("made_later", None)
        self.register_buffer("only_read", torch.arange(3.0))
        self.alias = self.in_place  # somebody else may know it too

    def forward(self, x):
        self.alias.mul_(2)
        self.by_data.data += 1
        self.replaced = 0.9 * self.replaced + x.mean().detach()
        self.counter += 1
        self.made_later = x.detach().clone()
        return x * self.only_read


NORMS = {
    "BatchNorm1d": (nn.BatchNorm1d, (5, 3)),
    "BatchNorm2d": (nn.BatchNorm2d, (5, 3, 4, 4)),
    "BatchNorm3d": (nn.BatchNorm3d, (5, 3, 2, 2, 2)),
    "SyncBatchNorm": (nn.SyncBatchNorm, (5, 3, 4)),
    "InstanceNorm1d": (nn.InstanceNorm1d, (5, 3, 4)),
    "InstanceNorm2d": (nn.InstanceNorm2d, (5, 3, 4, 4)),
    "InstanceNorm3d": (nn.InstanceNorm3d, (5, 3, 2, 2, 2)),
    "of a class of its own": (type("Own", (nn.BatchNorm1d,), {}), (5, 3)),
}


def made(kind, **options):
    norm, shape = NORMS[kind]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return norm(3, track_running_stats=True, **options), x + 2


def state(module):
    return {name: value.clone() for name, value in module.named_buffers()}


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("kind", NORMS)
def test_every_norm_computes_the_same_and_keeps_its_statistics(kind, momentum, training):
    norm, x = made(kind, momentum=momentum)
    norm(x)
    norm.train(training)
    twin, _ = made(kind, momentum=momentum)
    twin.load_state_dict(norm.state_dict())
    expected, before = twin.train(training)(x), state(norm)
    with still(norm.modules()):
        assert torch.equal(norm(x), expected)
    assert all(torch.equal(before[name], value) for name, value in norm.named_buffers())
    assert norm.track_running_stats
    if training:
        norm(x + 1)
        assert torch.equal(before["running_mean"], norm.running_mean) is (momentum is None and "Instance" in kind)


def test_statistics_of_a_norm_with_a_hook_stay_too():
    norm, x = made("BatchNorm1d")
    norm.register_forward_hook(lambda module, args, output: module.running_mean.add_(1))
    before = state(norm)
    with still([norm]):
        norm(x)
    assert all(torch.equal(before[name], value) for name, value in norm.named_buffers())


def test_buffers_of_a_users_own_are_put_back_however_they_moved():
    module = MovesEverything()
    before, addresses = state(module), {name: id(value) for name, value in module.named_buffers()}
    with still(module.modules()):
        module(torch.full((3,), 5.0))
        module(torch.full((3,), 7.0))
    after = dict(module.named_buffers())
    assert after.keys() == before.keys()
    assert all(torch.equal(before[name], value) for name, value in after.items())
    assert addresses == {name: id(value) for name, value in after.items()}
    assert module.made_later is None


def test_what_is_only_read_is_not_copied():
    module = MovesEverything()
    before = torch._C._data_address(module.only_read)
    snapshot = BufferSnapshot([module])
    module(torch.ones(3))
    assert torch._C._data_address(module.only_read) == before
    snapshot.put_back()
    assert torch._C._data_address(module.only_read) == before


def test_a_cache_that_has_grown_stays():
    """What its module knows about its length is no buffer, and would be wrong otherwise."""
    module = nn.Module()
    module.register_buffer("cache", torch.zeros(2))
    with still([module]):
        module.cache = torch.zeros(5)
    assert module.cache.shape == (5,)


def test_buffers_are_put_back_after_a_failure():
    module = MovesEverything()
    before = state(module)
    with pytest.raises(TypeError), still([module]):  # noqa: PT012
        module(torch.ones(3))
        raise TypeError
    assert all(torch.equal(before[name], value) for name, value in module.named_buffers())
