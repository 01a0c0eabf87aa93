from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from advnas import Choice, Search, Task, Zero

MOMENTUM = partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3)


def conv(kernel):
    return nn.Sequential(nn.Conv2d(4, 4, kernel, padding=kernel // 2), nn.BatchNorm2d(4), nn.ReLU())


class Network(nn.Module):
    """Tied, nested and shared candidates, dropout, running statistics, and weights in another memory format."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        inner = Choice({"a": conv(1), "b": conv(3)}, name="inner")
        common = nn.Conv2d(4, 4, 1)
        self.body = nn.Sequential(
            Choice({"conv": conv(3), "skip": nn.Identity(), "zero": Zero()}, name="tied"),
            Choice({"conv": conv(3), "skip": nn.Identity(), "zero": Zero()}, name="tied"),
            Choice({"leaf": conv(3), "branch": nn.Sequential(conv(1), inner)}, name="outer"),
            nn.Dropout(0.1),
            Choice({"one": common, "two": nn.Sequential(common, nn.Tanh())}, name="shared"),
        )
        self.last = nn.Linear(4, 3)

    def forward(self, x):
        return self.last(self.body(self.stem(x)).mean((2, 3)))


def network():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Network().to(memory_format=torch.channels_last)


def loss_of(model, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(6, 2, 5, 5, generator=generator), torch.randint(3, (6,), generator=generator)
    return F.cross_entropy(model(x), y)


def search_with(store, strategy="advantage", **options):
    options = {"steps": 30, "weight_optimizer": MOMENTUM, "seed": 1, **options}
    return Search(network(), strategy, weights=store, **options)


def take_steps(search, count, start=0):
    for number in range(start, start + count):
        batch = partial(loss_of, seed=number)
        search.weight_step(batch)
        search.architecture_step(batch, training_loss_of=batch)
        search.joint_step(batch)


def everything(search):
    """All numbers of a search, flat."""
    state, flat = search.state(), {}

    def visit(path, value):
        if isinstance(value, dict):
            for key, inner in value.items():
                visit((*path, key), inner)
        elif isinstance(value, list | tuple):
            for key, inner in enumerate(value):
                visit((*path, key), inner)
        else:
            flat[path] = value

    visit((), state)
    return flat


def assert_equal(one, other):
    ours, theirs = everything(one), everything(other)
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, theirs[key]), key
        else:
            assert value == theirs[key], key


def task():
    """Three minibatches an epoch, of which each is its seed."""
    return Task(training=[0, 1, 2], validation=[3, 4, 5], loss=loss_of)


@pytest.fixture(scope="session")
def lab():
    """A network with all kinds of candidates, searches of it, and how to compare them."""
    return SimpleNamespace(
        network=network,
        loss_of=loss_of,
        task=task,
        search_with=search_with,
        take_steps=take_steps,
        assert_equal=assert_equal,
    )


@pytest.fixture
def resident_bytes():
    """Tells how much of the scratch files is in this process's memory."""

    def count():
        total, inside = 0, False
        for line in Path("/proc/self/smaps").read_text().splitlines():
            if not line.split()[0].endswith(":"):
                inside = "/advnas-" in line
            elif inside and line.startswith("Rss:"):
                total += int(line.split()[1]) * 1024
        return total

    return count
