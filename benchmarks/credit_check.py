"""Does a search notice where its strategy's slopes are wrong? By where choices stand, and the age of the parent.

For every network, age and seed: train the parent with uniform draws, then compare the slopes of every strategy that
is judged with the most swaps that a search measures (64), on one minibatch from which nothing is learnt. Reported
per network and strategy, for parents after few and many epochs: the median of the cosine over the seeds (lowest to
highest), and in how many seeds a search would have warned; also one that can afford fewer swaps.

The thresholds in src/advnas/search/swaps.py were chosen on these seeds; the tests use others.

    .venv/bin/python benchmarks/credit_check.py --seeds 900 901
    .venv/bin/python benchmarks/credit_check.py --json > docs/results/credit_check.json
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from advnas import Search
from advnas.records.provenance import provenance
from advnas.search import CreditCheck
from advnas.search.swaps import check_credit
from credit_structures import STRUCTURES, Parent

NETWORKS = ("chain", "blocks", "residual", "cell")
JUDGED = ("advantage", "gdas", "contrast", "proxyless")
SQUARES = 16  # of four swaps
COUNTS = (64, 32, 16, 8)  # swaps
COLUMNS = {
    "network": "network",
    "strategy": "strategy",
    "few": "cosine, 15 epochs",
    "many": "cosine, 120 epochs",
    **{f"warned_{count}": f"warned, {count} swaps" for count in COUNTS},
}


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(1)
    rows = [row for network in NETWORKS for row in rows_of(network, options.seeds)]
    if options.json:
        columns = [{"title": title, "field": field} for field, title in COLUMNS.items()]
        source = {"seeds": f"{options.seeds[0]} to {options.seeds[-1]}", **provenance()}
        print(json.dumps({"columns": columns, "rows": rows, "source": source}, indent=1))
        return
    for row in rows:
        print("  ".join(row.values()))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(900, 920)))
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def rows_of(network: str, seeds: Sequence[int]) -> list[dict[str, str]]:
    """One row per strategy."""
    structure = STRUCTURES[network]
    ages = [[measure(structure.make(epochs, seed)) for seed in seeds] for epochs in structure.ages]
    return [row(network, name, [[one[name] for one in age] for age in ages]) for name in JUDGED]


def measure(parent: Parent) -> dict[str, CreditCheck]:
    """Train a parent, and compare the slopes of each strategy with swaps; none of them changes it."""
    trained = parent.search
    for _ in range(trained.progress.warmup):
        trained.weight_step(parent.training(trained))
    begin = partial(Search, trained.model, steps=trained.progress.steps, seed=trained.seed)
    return {name: check_credit(begin(name), parent.judged[0], SQUARES) for name in JUDGED}


def row(network: str, strategy: str, ages: list[list[CreditCheck]]) -> dict[str, str]:
    cosines = {field: spread([one.cosine for one in age]) for field, age in zip(("few", "many"), ages, strict=True)}
    counts = {f"warned_{count}": ", ".join(str(warned(age, count)) for age in ages) for count in COUNTS}
    return {"network": network, "strategy": strategy, **cosines, **counts}


def spread(cosines: list[float]) -> str:
    return f"{statistics.median(cosines):.2f} ({min(cosines):.2f} to {max(cosines):.2f})"


def warned(checks: list[CreditCheck], count: int) -> int:
    """In how many seeds a search that can afford so many swaps would have warned."""
    return sum(replace(check, swaps=check.swaps[:count]).contradicts for check in checks)


if __name__ == "__main__":
    main()
