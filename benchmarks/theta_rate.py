"""Which learning rate suits a search of which length? Travel (rate x architecture steps), by task and strategy.

Adam moves a logit by about its rate in every step, whatever the size of the gradient. So what a search can decide
depends on how far theta may travel: rate x steps, of which a cosine annealing leaves half. For several lengths and
travels this measures the answer, on seeds that no page reports:

    residual, chain    digits, 8 decisions of 5 operations on a frozen parent (`decisions_scaling.py`): loss of the
                       answer on the test data, divided by the mean of random architectures
    toy                the toy study, 10 decisions of 10 operations: test loss x 100 of the answer, 20 trials

and the entropy at the end as a share of its start. One file per (task, strategy) is kept in the folder.

    .venv/bin/python benchmarks/theta_rate.py --folder F
    .venv/bin/python benchmarks/theta_rate.py --folder F --pages docs/results
"""

import argparse
import itertools
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from advnas.paper.toy import ToySearch, ToySettings, run_toy
from advnas.records.files import write_atomically
from advnas.records.provenance import provenance
from decisions_scaling import UNITS, Bench, Scale
from kept import kept, read_all

Run = dict[str, Any]

LENGTHS = (50, 200, 800)
TRAVELS = (3.0, 10.0, 30.0, 100.0)
STRATEGIES = ("contrast", "reinforce", "advantage")
SEEDS = (900, 901, 902)
_DECISIONS, _TRIALS = 8, 20


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(1)
    if options.pages is None:
        for task, strategy in itertools.product(TASKS, STRATEGIES):
            kept(options.folder / f"{task}-{strategy}.json", partial(measure, task, strategy))
    results = read_all(options.folder.glob("*.json"))
    if options.pages is not None:
        write_atomically(options.pages / "theta_rate.json", json.dumps(table(results), indent=1) + "\n")
    else:
        print(json.dumps(table(results), indent=1))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="of the results; outside of the checkout")
    parser.add_argument("--pages", type=Path, metavar="FOLDER", help="measure nothing; write the table of the docs")
    return parser.parse_args()


def measure(task: str, strategy: str) -> dict[str, Any]:
    """Run one strategy on one task with every length and travel."""
    return {"task": task, "strategy": strategy, "runs": list(TASKS[task](strategy)), **provenance()}


def digits(structure: str) -> Callable[[str], Iterator[Run]]:
    def measure(strategy: str) -> Iterator[Run]:
        for seed in SEEDS:
            bench = Bench(structure, _DECISIONS, seed, Scale())
            mean = statistics.fmean(bench.judge_random(bench.ranked_random("frozen")[0])["random_losses"])
            for length, travel in itertools.product(LENGTHS, TRAVELS):
                bench.scale = replace(Scale(), passes=round(length * UNITS[strategy]))
                search, _ = bench.learn(strategy, travel / length, "frozen")
                start = search.distribution.logits.isfinite().sum(-1).float().log().mean()
                entropy = (search.distribution.entropy().mean() / start).item()
                yield told(seed, length, travel, bench.test_loss(search.derive()) / mean, entropy)

    return measure


def toy(strategy: str) -> Iterator[Run]:
    for seed, length, travel in itertools.product(SEEDS, LENGTHS, TRAVELS):
        settings = ToySettings(iterations=length, trials=_TRIALS, seed=seed, learning_rate=travel / length)
        found: dict[str, ToySearch] = {}
        losses = run_toy(settings, [strategy], partial(keep, found))[strategy]
        entropy = found[strategy].entropy() / math.log(settings.candidates)
        yield told(seed, length, travel, statistics.fmean(losses[-1]), entropy)


def keep(found: dict[str, ToySearch], iteration: int, searches: dict[str, ToySearch]) -> None:
    found.update(searches)


def told(seed: int, length: int, travel: float, loss: float, entropy: float) -> Run:
    print(f"seed {seed}, {length} steps, travel {travel:g}: {loss:.3f}, entropy {entropy:.2f}", file=sys.stderr)
    return {"seed": seed, "length": length, "travel": travel, "loss": loss, "entropy": entropy}


TASKS: dict[str, Callable[[str], Iterator[Run]]] = {
    "residual": digits("residual"),
    "chain": digits("chain"),
    "toy": toy,
}


def table(results: Sequence[Run]) -> Run:
    """A row per task, strategy and length; a column per travel: the loss, one number per seed."""
    columns: list[Run] = [{"title": name, "field": name} for name in ("task", "strategy")]
    columns += [{"title": "steps of theta", "field": "steps", "format": "d"}]
    columns += [{"title": f"travel {travel:g}", "field": f"{travel:g}", "format": ".2f"} for travel in TRAVELS]
    columns += [
        {"title": f"entropy, {travel:g}", "field": f"entropy {travel:g}", "format": ".2f"} for travel in TRAVELS
    ]
    rows = []
    for result, length in itertools.product(results, LENGTHS):
        row: Run = {"task": result["task"], "strategy": result["strategy"], "steps": length}
        for travel in TRAVELS:
            own = [run for run in result["runs"] if (run["length"], run["travel"]) == (length, travel)]
            row[f"{travel:g}"] = [run["loss"] for run in own]
            row[f"entropy {travel:g}"] = statistics.fmean(run["entropy"] for run in own)
        rows.append(row)
    source = {
        "command": "benchmarks/theta_rate.py --folder F",
        "seeds": ", ".join(map(str, SEEDS)),
        "commit": ", ".join(sorted({result["commit"] for result in results})),
        "machine": ", ".join(sorted({result["machine"] for result in results})),
    }
    return {"source": source, "columns": columns, "rows": rows}


if __name__ == "__main__":
    main()
