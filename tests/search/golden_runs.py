"""The searches behind golden.json, as a program: `python golden_runs.py write|pair FILE`.

`write` runs everything and writes the file that test_golden.py compares with. `pair` runs the variants of two
processes. Everything is computed in float64: what remains between two machines are rounding errors, not chaos.
"""

import hashlib
import json
import platform
import sys
import tempfile
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from advnas import Choice, Search, Task, Zero, gates, strategies

GOLDEN = Path(__file__).with_name("golden.json")
EPOCHS, WARMUP = 4, 1
SCHEDULES, STORES = ("alternate", "joint"), ("resident", "disk")
VARIANTS = {
    **{name: partial(strategies.get, name) for name in strategies.names()},
    "darts, second order": partial(strategies.get, "darts", second_order=True),
    "parsec, minibatch per draw": partial(strategies.get, "parsec", minibatch_per_draw=True),
    "proxyless, both active": partial(strategies.get, "proxyless", both_active=True),
}
RESUMED = PAIRED = ("advantage", "contrast", "parsec", "enas")
JOURNAL = ("phase", "number", "loss", "entropy", "architecture", "advantages", "gradient_norm")

WEIGHTS = partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3)
THETA = partial(torch.optim.Adam, lr=0.05, betas=(0.5, 0.999), weight_decay=1e-3)


class Cell(nn.Module):
    """Three edges between three nodes, with the zero operation, BatchNorm and a candidate that holds a choice."""

    def __init__(self, width):
        super().__init__()

        def normed():
            return nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU())

        def edge(start, end, **more):
            candidates = {"normed": normed(), "skip": nn.Identity(), "zero": Zero(), **more}
            return Choice(candidates, name=f"edge {start}{end}", edge=(start, end))

        inner = Choice({"narrow": nn.Linear(width, width), "tanh": nn.Tanh()}, name="inner")
        self.first = edge("0", "1")
        self.second = edge("0", "2", nested=nn.Sequential(inner, nn.Linear(width, width)))
        self.third = edge("1", "2", drop=nn.Dropout(0.3))

    def forward(self, x):
        return self.second(x) + self.third(self.first(x))


def network():
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Linear(3, 6),
        Cell(6),  # the two cells are tied by the names of their choices
        nn.BatchNorm1d(6),
        Choice({"a": nn.Linear(6, 6, bias=False), "b": nn.Sequential(nn.Linear(6, 9), nn.GELU(), nn.Linear(9, 6))}),
        Cell(6),
        nn.Linear(6, 2),
    )


def task():
    random = torch.Generator().manual_seed(1)
    x = torch.randn(60, 3, generator=random)
    y = torch.stack([x.prod(1), x.sum(1).sin()], 1)
    pairs = list(zip(x.split(6), y.split(6), strict=True))
    return Task(pairs[:6], pairs[6:], lambda model, batch: F.mse_loss(model(batch[0]), batch[1]))


def make(variant, schedule, store, **options):
    budget = {"memory_budget": "2MB"} if store == "disk" else {}
    return Search(
        network(),
        VARIANTS[variant](),
        schedule=schedule,
        weights=store,
        weight_optimizer=WEIGHTS,
        architecture_optimizer=THETA,
        seed=5,
        **budget,
        **options,
    )


class Interrupted(Exception):
    pass


def run(variant, schedule="alternate", store="resident", *, stop_after=None, **options):
    """One search in a folder of its own; with stop_after, cut off at that step and taken up again."""
    taken = 0

    def count(step):
        nonlocal taken
        taken += 1
        if taken == stop_after:
            raise Interrupted

    with tempfile.TemporaryDirectory() as folder:
        search = make(variant, schedule, store, **options)
        whole = partial(Search.run, task=task(), epochs=EPOCHS, warmup=WARMUP, folder=folder)
        if stop_after is None:
            whole(search)
        else:
            try:
                whole(search, on_step=count)
            except Interrupted:
                search = make(variant, schedule, store, **options)
                whole(search, resume=True)
        lines = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    return outcome(search, lines)


def outcome(search, lines):
    """digests: equal only if every bit is. numbers: the same things, to be compared with a tolerance."""
    journal = [{key: line[key] for key in JOURNAL} for line in lines]
    theta = search.distribution.logits
    weights = search.model.state_dict()
    numbers = {
        "losses": [line["loss"] for line in journal],
        "theta": theta.masked_fill(theta.isinf(), 0).flatten().tolist(),
        "weights": [value.double().square().mean().item() for value in weights.values()],
    }
    digests = {
        "journal": _digest(json.dumps(journal, sort_keys=True).encode()),
        "theta": _digest(_bytes(theta)),
        "weights": _digest(b"".join(name.encode() + _bytes(value) for name, value in weights.items())),
    }
    return {"digests": digests, "numbers": numbers}


def _digest(content):
    return hashlib.sha256(content).hexdigest()[:16]


def _bytes(tensor):
    return tensor.detach().contiguous().numpy().tobytes()


def machine():
    """What must be the same for a search to give the same bits: torch, its kernels, and the processor."""
    return {
        "torch": torch.__version__,
        "kernels": torch.backends.cpu.get_cpu_capability(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
    }


def _processor():
    keys = ("model name", "cpu family", "model", "stepping", "flags")
    path = Path("/proc/cpuinfo")
    lines = path.read_text().split("\n\n")[0].splitlines() if path.exists() else []
    told = [line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() in keys]
    return _digest("|".join(told).encode()) if told else platform.processor()


def use_gates_of_large_networks():
    """The networks here are small; without this their gates would be plain multiplications."""
    gates.gate._SMALL = 0


def pair(target):
    """Two processes, each with half of the minibatches; rank 0 tells what came out."""
    use_gates_of_large_networks()
    from advnas.parallel.launch import joined

    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    with joined() as group:
        found = {}
        for variant in PAIRED:
            search, lines = make(variant, "alternate", "resident", group=group), []
            search.run(task(), epochs=EPOCHS, warmup=WARMUP, on_step=lambda step, to=lines: to.append(vars(step)))
            found[variant] = outcome(search, lines)
        if group.rank == 0:
            target.write_text(json.dumps(found))


def run_pair(target):
    from advnas.parallel.launch import spawn

    spawn(pair, (target,), 2)


def write(target):
    torch.set_num_threads(1)
    found = {f"{variant}, {schedule}": run(variant, schedule) for variant in VARIANTS for schedule in SCHEDULES}
    with tempfile.TemporaryDirectory() as folder:
        run_pair(Path(folder) / "pair.json")
        found |= {
            f"{variant}, two processes": outcome
            for variant, outcome in json.loads((Path(folder) / "pair.json").read_text()).items()
        }
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(one)}" for name, one in found.items())
    target.write_text(f'{{"machine": {json.dumps(machine())},\n"runs": {{\n{lines}\n}}}}\n')


if __name__ == "__main__":
    use_gates_of_large_networks()
    torch.set_default_dtype(torch.float64)
    {"write": write, "pair": run_pair}[sys.argv[1]](Path(sys.argv[2]))
