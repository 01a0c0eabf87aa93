"""Entry points as a user writes them."""

from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import advnas


def loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def accuracy(model, batch):
    return 100 * (model(batch[0]).argmax(1) == batch[1]).float().mean().item()


def make_search(strategy, seed, *, width=8):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(256, 4, generator=generator)
    y = (x[:, 0] * x[:, 1] > 0).long()
    batches = list(zip(x.split(32), y.split(32), strict=True))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        mlp = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        middle = advnas.Choice({"skip": nn.Identity(), "mlp": mlp}, name="middle")
        model = nn.Sequential(nn.Linear(4, width), middle, nn.Linear(width, 2))
    search = advnas.Search(model, strategy, seed=seed, architecture_optimizer=partial(torch.optim.Adam, lr=0.05))
    return search, advnas.Task(batches[:4], batches[4:], loss, metric=accuracy)


def make_noted_search(strategy, seed):
    """Every call is a line of calls.txt."""
    with Path("calls.txt").open("a") as file:
        file.write(f"{strategy} {seed}\n")
    return make_search(strategy, seed)


def make_search_that_has_run(strategy, seed):
    search, task = make_search(strategy, seed)
    for batch in task.training:
        search.weight_step(lambda model, batch=batch: loss(model, batch))
    return search, task


def make_something_else(strategy, seed):
    return make_search(strategy, seed)[0]


not_a_function = 3
