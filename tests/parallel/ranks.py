"""Searches by several processes, as a program that tests can start and kill: ranks.py WORK PROCESSES FOLDER."""

import os
import sys
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from advnas import Choice, NonFiniteLoss, Search, SearchSpace, Task, Zero, strategies
from advnas.costs import Cost, table
from advnas.parallel import launch
from advnas.parallel.launch import joined, spawn
from advnas.parallel.reductions import PRESENCE, THETA, WEIGHTS

SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=1e-3)
EPOCHS, WARMUP, BATCHES = 4, 1, 12
INDEPENDENT = [name for name in strategies.names() if strategies.strategy_type(name).independent_draws]


def network(norm=nn.Identity):
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(3, 8),
        Choice({"linear": nn.Linear(8, 8), "skip": nn.Identity(), "zero": Zero()}, name="first"),
        nn.Tanh(),
        norm(8),
        Choice(
            {"wide": nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8)), "narrow": nn.Linear(8, 8)}, name="second"
        ),
        nn.Linear(8, 1),
    )


def loss(model, batch):
    return F.mse_loss(model(batch[0]), batch[1])


def task(size):
    """12 minibatches of 8, or the same examples in larger ones."""
    x = torch.randn(2 * BATCHES * 8, 3, generator=torch.Generator().manual_seed(1))
    pairs = list(zip(x.split(size), x.prod(1, keepdim=True).split(size), strict=True))
    return Task(pairs[: len(pairs) // 2], pairs[len(pairs) // 2 :], loss)


def make(strategy, group=None, *, norm=nn.Identity, draws="shared", **options):
    options = {"weight_optimizer": SGD, "architecture_optimizer": SGD, **options}
    return Search(network(norm), strategy, seed=5, group=group, draws=draws, **options)


def outcome(search, steps):
    return {
        "model": search.model.state_dict(),
        "theta": search.distribution.logits,
        "state": search.policy.state,
        "best": search.process_best
        and [search.space.one_hot(search.process_best.architecture), search.process_best.loss],
        "losses": [step.loss for step in steps],
    }


def run(strategy, group=None, *, batch=8, folder=None, resume=False, on_step=None, **options):
    steps = []
    search = make(strategy, group, **options)
    search.run(
        task(batch),
        epochs=EPOCHS,
        warmup=WARMUP,
        folder=folder,
        resume=resume,
        on_step=lambda step: (steps.append(step), on_step and on_step(step)),
    )
    return search, outcome(search, steps)


def every_strategy(folder):
    """All strategies, and both schedules; what each process ended with."""
    with joined() as group:
        found = {name: run(name, group)[1] for name in strategies.names()}
        found["second order"] = run(strategies.get("darts", second_order=True), group)[1]
        found["joint"] = run("advantage", group, schedule="joint")[1]
        found["norm"] = run("advantage", group, norm=nn.BatchNorm1d)[1]
        found["measured"] = run("contrast", group, limit={"latency": 3.0}, costs=[measured(group)])[1]
        own = {name: run(name, group, draws="independent")[1] for name in INDEPENDENT}
        keep(group, folder / "kept")
        torch.save({"shared": found, "independent": own}, folder / f"{group.rank}.pt")
        torch.save({"bytes": bytes_of_steps(group), "errors": errors(group)}, folder / f"details-{group.rank}.pt")


def measured(group):
    """A cost that every process measures for itself, and finds different."""
    numbers = {"first": {"linear": 2.0, "skip": 0.1, "zero": 0.1}, "second": {"wide": 3.0, "narrow": 1.0}}
    found = table(SearchSpace(network()), numbers, name="latency", unit="ms")
    terms = {place: value + 0.5 * group.rank for place, value in found.terms.items()}
    return Cost(found.name, found.unit, found.constant, terms, note="measured")


def bytes_of_steps(group):
    """What each of a few steps handed over, beside what it should be."""
    rows = []
    search, batches = make("advantage", group, norm=nn.BatchNorm1d), task(8).training
    for batch in batches:
        before = group.sent.copy()
        step = search.weight_step(lambda model, batch=batch: loss(model, batch))
        path = search.derive(step.architecture)
        loss(path, batch).backward()
        gradients = sum(weight.nbytes for weight in path.parameters() if weight.grad is not None)
        search.architecture_step(lambda model, batch=batch: loss(model, batch))
        sent = {purpose: group.sent[purpose] - before[purpose] for purpose in (PRESENCE, WEIGHTS, THETA)}
        rows.append({"sent": sent, "gradients": gradients, "statistics": 2 * 4 * 8, "theta": 4 * 2 * 3})
    return rows


def errors(group):
    """What is refused, or found out by only one process, is said by all."""
    found = {}

    def attempt(name, work):
        try:
            work()
        except (ValueError, NonFiniteLoss) as error:
            found[name] = f"{type(error).__name__}: {error}"

    search = make("advantage", group)
    infinite = torch.inf if group.rank == 1 else 1.0
    attempt("one bad minibatch", lambda: search.weight_step(lambda model: model(torch.ones(1, 3)).sum() * infinite))
    own = make("random", group, draws="independent")
    attempt("one bad draw", lambda: own.architecture_step(lambda model: model(torch.ones(1, 3)).sum() * infinite))
    attempt("another seed", lambda: Search(network(), seed=group.rank, group=group))
    return found


def keep(group, folder, pause=0.0):
    """A search with a folder; it goes on where it was."""
    _, found = run("advantage", group, folder=folder, resume=True, on_step=lambda step: time.sleep(pause))
    torch.save(found, folder / f"{group.rank}.pt")


def slow_run(folder):
    """Its steps leave time to kill somebody, the first time."""
    pause = 0.0 if any(folder.glob("checkpoint-*.json")) else 0.05
    with joined() as group:
        (folder / f"pid-{group.rank}").write_text(str(os.getpid()))
        keep(group, folder, pause)


def hang(folder):
    """Rank 1 stops answering, as in a loss that waits for ever; patience is short, for the test."""
    launch.PATIENCE = timedelta(seconds=3)
    with joined() as group:
        if group.rank == 1:
            time.sleep(600)
        group.wait()


def fail(folder):
    """Rank 1 raises; rank 0 hears of it, and hangs on."""
    with joined() as group:
        if group.rank == 1:
            raise ValueError("rank 1 has seen a bad file.")
        time.sleep(600)


if __name__ == "__main__":
    torch.set_num_threads(1)
    spawn(globals()[sys.argv[1]], (Path(sys.argv[3]),), int(sys.argv[2]))
