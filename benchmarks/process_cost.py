"""What does it cost to have several processes?

averages: milliseconds that two processes on this machine take to average so many bytes over gloo.
step: time of a weight step and an architecture step by two processes with one thread each, as a ratio to one
    process with two threads and all of the minibatch.
empty_runs: milliseconds that an engine of studies takes for a run in which nothing happens: two processes, and,
    where it is installed, Ray with a worker for every core.

    .venv/bin/python benchmarks/process_cost.py --json
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import wait
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from torch.nn import functional as F

from advnas import Search
from advnas.parallel.group import Group
from advnas.parallel.launch import joined, spawn
from advnas.randomness import generator
from advnas.search import LossOf
from advnas.spaces.nasbench201 import ConvolutionCellNetwork
from advnas.studies.engines import Engine, Processes, Ray

PROCESSES = 2
BYTES = (120, 40_000, 1_000_000, 20_000_000)  # theta of NAS-Bench-201's cell, and gradients of ever larger paths

Measure = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--batch", type=int, default=128, help="images a step, shared by the processes")
    parser.add_argument("--repeats", type=int, default=20, help="the median of these counts")
    parser.add_argument("--runs", type=int, default=2000, help="empty runs of a study")
    options = parser.parse_args()
    results = {
        "averages": averages(options.repeats),
        "step": step(options.batch, options.repeats),
        "empty_runs": empty_runs(options.runs),
    }
    if options.json:
        print(json.dumps(results, indent=1))
        return
    for section, rows in results.items():
        for name, value in rows.items():
            print(f"{section:10s}  {name:40s}  {value:8.3f}")


def averages(repeats: int) -> Measure:
    return _by_two(_measure_averages, repeats)


def step(batch: int, repeats: int) -> Measure:
    """Alone, together and alone again: machines change their speed from minute to minute."""
    before = _seconds_of_turn(Group(), batch, repeats)
    together = _by_two(_measure_turn, batch, repeats)["seconds"]
    after = _seconds_of_turn(Group(), batch, repeats)
    return {"two processes to one": round(together / statistics.mean([before, after]), 3)}


def empty_runs(count: int) -> Measure:
    engines: dict[str, Engine] = {"processes": Processes(PROCESSES)}
    if find_spec("ray"):
        engines["ray"] = Ray()
    return {name: _milliseconds_of_empty_run(engine, count) for name, engine in engines.items()}


def _milliseconds_of_empty_run(engine: Engine, count: int) -> float:
    with engine:
        wait([engine.submit(_nothing) for _ in range(PROCESSES)])  # once the workers are there
        start = time.perf_counter()
        wait([engine.submit(_nothing) for _ in range(count)])
        return round((time.perf_counter() - start) / count * 1e3, 3)


def _nothing() -> None:
    pass


def _by_two(work: Callable[..., None], *arguments: int) -> Measure:
    """Let two processes measure something; rank 0 leaves what it found in a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "measure.json"
        spawn(work, (path, *arguments), PROCESSES)
        found: Measure = json.loads(path.read_text())
        return found


def _measure_averages(path: Path, repeats: int) -> None:
    with joined() as group:
        found = {}
        for size in BYTES:
            numbers = torch.ones(size // 4)
            seconds = _median_seconds(partial(group.average_, [numbers], "benchmark"), repeats)
            found[f"{size} bytes"] = round(1e3 * seconds, 3)
        if group.rank == 0:
            path.write_text(json.dumps(found))


def _measure_turn(path: Path, batch: int, repeats: int) -> None:
    with joined() as group:
        seconds = _seconds_of_turn(group, batch // PROCESSES, repeats)
        if group.rank == 0:
            path.write_text(json.dumps({"seconds": seconds}))


def _seconds_of_turn(group: Group, batch: int, repeats: int) -> float:
    """A weight and an architecture step of the NAS-Bench-201 network; all groups draw the same architectures."""
    torch.manual_seed(0)
    network = ConvolutionCellNetwork().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    search, loss_of = Search(network, steps=10**6, group=group), _loss(batch, group.rank)

    def turn() -> None:
        search.weight_step(loss_of)
        search.architecture_step(loss_of)

    return _median_seconds(turn, repeats)


def _loss(batch: int, rank: int) -> LossOf:
    random = generator(rank)
    images = torch.randn(batch, 3, 32, 32, generator=random).to(memory_format=torch.channels_last)
    labels = torch.randint(10, (batch,), generator=random)
    return lambda model: F.cross_entropy(model(images), labels)


def _median_seconds(work: Callable[[], object], repeats: int) -> float:
    work()
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


if __name__ == "__main__":
    main()
