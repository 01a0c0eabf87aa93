"""A network whose names mean something to whoever prints them: rich, HTML, matplotlib."""

import torch
from torch import nn
from torch.nn import functional as F

import advnas

DECISION = "edge[/x]"
OPERATIONS = ("conv[k=3]", "conv[/x]", "[red]skip", ":smile:", "$x_{$", "<b>bold", "_hidden")


def loss(model, batch):
    return F.mse_loss(model(batch[0]), batch[1])


def error(model, batch):
    return loss(model, batch).item()


error.__name__ = "error[/top1]"


def make_search(strategy, seed, **options):
    """The loss likes the first operation best, if any."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        x = torch.randn(32, 4)
        middle = advnas.Choice({name: nn.Linear(4, 4) for name in OPERATIONS}, name=DECISION)
        model = nn.Sequential(nn.Linear(4, 4), middle, nn.Linear(4, 1))
    batches = list(zip(x.split(8), x.sum(1, keepdim=True).split(8), strict=True))
    return advnas.Search(model, strategy, seed=seed), advnas.Task(batches, batches, loss, metric=error)
