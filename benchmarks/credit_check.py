"""Does a search notice where its strategy's slopes are wrong? By where choices stand, and the age of the parent.

For every network, age and seed: train the parent with uniform draws, then compare the slopes of every strategy that
is judged with the most swaps that a search measures (64), on one minibatch from which nothing is learnt. Reported
per network, age and strategy: the cosine (lowest, median, highest of the seeds), and in how many seeds a search
would have warned. The last lines tell the same for searches that can afford fewer swaps.

The thresholds in src/advnas/search/swaps.py were chosen on these seeds; the tests use others.

    .venv/bin/python benchmarks/credit_check.py --seeds 900 901
    .venv/bin/python benchmarks/credit_check.py --json > docs/results/credit_check.json
"""

import argparse
import json
import statistics
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from advnas import Search
from advnas.records.provenance import provenance
from advnas.search import CreditCheck
from advnas.search.swaps import check_credit
from credit_structures import STRUCTURES, Parent

NETWORKS = ("chain", "blocks", "residual", "cell")
JUDGED = ("advantage", "gdas", "contrast", "proxyless")
SQUARES = 16  # of four swaps
FEWER = (8, 16, 32)  # swaps


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(1)
    found: dict[tuple[str, int, str], list[CreditCheck]] = {}
    for network in NETWORKS:
        for epochs in STRUCTURES[network].ages:
            for seed in options.seeds:
                for strategy, check in measure(STRUCTURES[network].make(epochs, seed)):
                    found.setdefault((network, epochs, strategy), []).append(check)
    rows = [row(*key, checks) for key, checks in found.items()]
    if options.json:
        print(json.dumps({"seeds": options.seeds, "rows": rows, "source": provenance()}, indent=1))
        return
    for one in rows:
        print("  ".join(f"{key} {value}" for key, value in one.items()))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(900, 920)))
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def measure(parent: Parent) -> Iterator[tuple[str, CreditCheck]]:
    """Train a parent, and compare the slopes of each strategy with swaps; none of them changes it."""
    trained = parent.search
    for _ in range(trained.progress.warmup):
        trained.weight_step(parent.training(trained))
    for strategy in JUDGED:
        search = Search(trained.model, strategy, steps=trained.progress.steps, seed=trained.seed)
        yield strategy, check_credit(search, parent.judged[0], SQUARES)


def row(network: str, epochs: int, strategy: str, checks: list[CreditCheck]) -> dict[str, Any]:
    cosines = [check.cosine for check in checks]
    fewer = {count: warned([replace(one, swaps=one.swaps[:count]) for one in checks]) for count in FEWER}
    return {
        "network": network,
        "epochs": epochs,
        "strategy": strategy,
        "lowest": round(min(cosines), 2),
        "median": round(statistics.median(cosines), 2),
        "highest": round(max(cosines), 2),
        "warned": warned(checks),
        "warned_with_fewer": fewer,
    }


def warned(checks: list[CreditCheck]) -> float:
    return round(statistics.fmean(check.contradicts for check in checks), 3)


if __name__ == "__main__":
    main()
