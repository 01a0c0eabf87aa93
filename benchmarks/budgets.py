"""Does a search under a limit find the best network that fits? On tables that know every network.

Theta learns from the table's own validation accuracy (REINFORCE, one looked-up network per step), so that the
budget machinery is judged and not the shared weights. NAS-Bench-201 with multiply-adds and with the latencies of
six devices, NAS-Bench-Macro with parameters and multiply-adds; ten limits each, at the 5 % to 95 % quantiles of the
cost.

ours         Search's own: dual ascent on the exact expected cost, then the most likely architecture within the
             limit; a latency is looked up (measured) and the limit tightened, at most 20 times
penalty      a fixed weight on the expected cost, best of five weights: the best argmax that is within the limit
rejection    a search without a limit, then draws from theta until one is within the limit, at most 1,000
uniform      the same knapsack as ours on a theta that has learnt nothing, ties broken at random
derivation   a search without a limit, then the same knapsack as ours

A latency is predicted by a sum per operation, fitted to 200 networks (non-negative least squares). Regret: points
of test accuracy behind the best network within the limit. A method without an answer within the limit gets the
cheapest network; the share of its own answers within the limit stands beside it.

    ADVNAS_DATA=... .venv/bin/python benchmarks/budgets.py --json > docs/results/budgets.json
"""

import argparse
import csv
import gzip
import itertools
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls  # type: ignore[import-untyped]
from torch import Tensor

from advnas import Distribution, strategies
from advnas.answers.measured import tighten
from advnas.architecture import Architecture
from advnas.costs import Cost, Infeasible, Limit, most_valuable
from advnas.randomness import generator
from advnas.records.provenance import provenance
from advnas.search import Policy
from advnas.search.budget import Budget
from advnas.strategies import Feedback, Phase
from advnas.tables import nasbench201, nasbench_macro
from advnas.tasks.data_folder import data_folder

STEPS, RATE = 2000, 0.05
DEVICES = ("1080ti_1", "pixel3", "raspi4", "eyeriss", "fpga", "gold_6226")
QUANTILES = [0.05 + 0.1 * number for number in range(10)]
WEIGHTS = (0.03, 0.1, 0.3, 1.0, 3.0)  # of the loss, per cost of a mean network
METHODS = {
    "ours": "limit",
    "penalty": "penalty, best of 5",
    "rejection": "rejection",
    "uniform": "knapsack, uniform",
    "derivation": "knapsack, unlimited",
}
FITTED, REJECTED, ROUNDS = 200, 1000, 20


@dataclass(frozen=True)
class Benchmark:
    """A table. valid, test: percent, [architectures], the last decision fastest."""

    name: str
    decisions: Mapping[str, tuple[str, ...]]
    valid: Tensor
    test: Tensor
    architectures: list[Architecture]

    def rows(self, chosen: Tensor) -> Tensor:
        """The row of one-hot architectures [..., decisions, candidates]."""
        radix = torch.tensor([len(own) for own in self.decisions.values()])
        weights = torch.cat([radix.flip(0).cumprod(0).flip(0)[1:], torch.ones(1, dtype=torch.long)])
        return (chosen.argmax(-1) * weights).sum(-1)

    def row(self, architecture: Architecture) -> int:
        place = 0
        for name, own in self.decisions.items():
            place = place * len(own) + own.index(architecture[name])
        return place


@dataclass(frozen=True)
class Problem:
    """A table and a cost. real: of every architecture. cost: the same as a sum, or a prediction of it."""

    table: Benchmark
    cost: Cost
    real: np.ndarray
    exact: bool


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(1)
    rows = []
    for problem in problems():
        rows += run(problem, options.seeds)
        print(problem.table.name, problem.cost.name, _means(rows), file=sys.stderr, flush=True)
    if options.json:
        print(json.dumps(table_of(rows) | {"source": provenance()}, indent=1))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)))
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _means(rows: list[dict[str, Any]]) -> str:
    last = [row for row in rows if (row["table"], row["cost"]) == (rows[-1]["table"], rows[-1]["cost"])]
    methods = dict.fromkeys(row["method"] for row in last)
    own = {name: [row for row in last if row["method"] == name] for name in methods}
    return "  ".join(
        f"{name} {fmean(row['regret'] for row in found):.3f} ({fmean(row['within'] for row in found):.2f})"
        for name, found in own.items()
    )


def table_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The table of docs/results/budgets.md: regret and share within the limit, per method and cost."""
    costs = [*dict.fromkeys((row["table"], row["cost"]) for row in rows), ("mean", "of all costs")]
    columns = [{"title": "table", "field": "table"}, {"title": "cost", "field": "cost"}]
    for method, title in METHODS.items():
        columns.append({"title": title, "field": method, "format": ".2f"})
        columns.append({"title": "within [%]", "field": f"{method}_within", "format": ".1f"})
    return {"columns": columns, "rows": [_table_row(rows, table, cost) for table, cost in costs]}


def _table_row(rows: list[dict[str, Any]], table: str, cost: str) -> dict[str, Any]:
    own = [row for row in rows if table == "mean" or (row["table"], row["cost"]) == (table, cost)]
    found: dict[str, Any] = {"table": table, "cost": cost}
    for method in METHODS:
        answers = [row for row in own if row["method"] == method]
        found[method] = round(fmean(row["regret"] for row in answers), 4)
        found[f"{method}_within"] = round(100 * fmean(row["within"] for row in answers), 2)
    return found


def problems() -> list[Problem]:
    folder = data_folder()
    return [*_of_nasbench201(folder), *_of_macro(folder)]


def _of_nasbench201(folder: Path) -> list[Problem]:
    known = {row["arch"]: row for row in _read(folder / "nasbench201.csv.gz")}
    slow = {row["arch"]: row for row in _read(folder / "nasbench201_latency_ms.csv.gz")}
    first = nasbench201.from_string(next(iter(known)))
    operations = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
    decisions = dict.fromkeys(first, operations)
    cells = _all(decisions)
    names = [nasbench201.to_string(cell) for cell in cells]
    table = Benchmark(
        "NAS-Bench-201",
        decisions,
        column(known, names, "cifar10_valid"),
        column(known, names, "cifar10_test"),
        cells,
    )
    found = [_additive(table, "multiply-adds", "M", column(known, names, "flops").numpy())]
    return found + [_fitted(table, device, column(slow, names, device).numpy()) for device in DEVICES]


def _of_macro(folder: Path) -> list[Problem]:
    known = {row["arch"]: row for row in _read(folder / "nasbench_macro.csv.gz")}
    decisions = dict.fromkeys(nasbench_macro.LAYERS, nasbench_macro.OPERATIONS)
    networks = _all(decisions)
    names = [nasbench_macro.to_string(network) for network in networks]
    # There is no validation accuracy: one training is the reward, the other two judge.
    table = Benchmark(
        "NAS-Bench-Macro",
        decisions,
        column(known, names, "test_1"),
        (column(known, names, "test_2") + column(known, names, "test_3")) / 2,
        networks,
    )
    return [
        _additive(table, name, "", column(known, names, key).numpy())
        for name, key in (("parameters", "params"), ("flops", "flops"))
    ]


def column(rows: Mapping[str, Mapping[str, str]], names: list[str], key: str) -> Tensor:
    return torch.tensor([float(rows[name][key]) for name in names], dtype=torch.float64)


def _read(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _all(decisions: Mapping[str, tuple[str, ...]]) -> list[Architecture]:
    return [
        Architecture(dict(zip(decisions, chosen, strict=True))) for chosen in itertools.product(*decisions.values())
    ]


def _additive(table: Benchmark, name: str, unit: str, real: np.ndarray) -> Problem:
    """The cost of every operation from single changes; it must explain the whole table."""
    base = dict(table.architectures[int(real.argmin())])
    least = float(real.min())
    terms = {
        frozenset([(decision, one)]): float(real[table.row(Architecture({**base, decision: one}))]) - least
        for decision, own in table.decisions.items()
        for one in own
    }
    cost = Cost(name, unit, least, {when: max(value, 0.0) for when, value in terms.items()})
    predicted = np.array([cost.of(one) for one in table.architectures])
    assert np.allclose(predicted, real, rtol=1e-4), (name, np.abs(predicted / real - 1).max())
    return Problem(table, cost, predicted, exact=True)


def _fitted(table: Benchmark, name: str, real: np.ndarray) -> Problem:
    """A sum of latencies per operation, fitted to some networks."""
    pairs = [(decision, one) for decision, own in table.decisions.items() for one in own]
    seen = torch.randperm(len(real), generator=generator(0, 201))[:FITTED].tolist()
    rows = [[float(table.architectures[place][d] == one) for d, one in pairs] + [1.0] for place in seen]
    weights, _ = nnls(np.array(rows), real[seen])
    terms = {frozenset([pair]): float(weight) for pair, weight in zip(pairs, weights[:-1], strict=True)}
    return Problem(table, Cost(name, "ms", float(weights[-1]), terms), real, exact=False)


def run(problem: Problem, seeds: list[int]) -> list[dict[str, Any]]:
    """All methods, limits and seeds of one problem; searches run side by side."""
    limits = [float(np.quantile(problem.real, share)) for share in QUANTILES]
    cases = [(limit, seed) for limit in limits for seed in seeds]
    amounts = torch.tensor([[limit] for limit, _ in cases], dtype=torch.float64)
    limited = learn(problem, amounts, None, (seeds[0], 0))
    free = learn(problem, amounts, 0.0, (seeds[0], 1))
    mean = float(problem.real.mean())
    penalised = [
        learn(problem, amounts, weight / mean, (seeds[0], 2 + place)) for place, weight in enumerate(WEIGHTS)
    ]
    found = []
    for number, (limit, seed) in enumerate(cases):
        random = generator(seed, number, 7)
        uniform = torch.rand(limited[number].shape, generator=random) * 1e-3
        answers = {
            "ours": knapsack(problem, limited[number], limit),
            "penalty": best_argmax(problem, [one[number] for one in penalised], limit),
            "rejection": rejected(problem, free[number], limit, random),
            "uniform": knapsack(problem, uniform, limit),
            "derivation": knapsack(problem, free[number], limit),
        }
        found += [judge(problem, name, limit, seed, answer) for name, answer in answers.items()]
    return found


def learn(problem: Problem, amounts: Tensor, weight: float | None, origin: tuple[int, int]) -> Tensor:
    """Logits after a search per amount, [searches, decisions, candidates].

    weight: a fixed penalty, no limit. origin: of the draws, the first seed and a purpose.
    """
    table = problem.table
    sizes = [len(own) for own in table.decisions.values()]
    policy = Policy(
        strategies.get("reinforce"),
        sizes,
        torch.zeros(len(sizes), max(sizes), dtype=torch.bool),
        optimizer=partial(torch.optim.Adam, lr=RATE),
        generator=generator(*origin, len(amounts)),
        batch=(len(amounts),),
    )
    if weight is None:
        policy.budget = Budget(table.decisions, [Limit(problem.cost, float(amounts.max()))])
        policy.budget.amounts = amounts
        policy.budget.multipliers = torch.zeros_like(amounts)
    elif weight:
        policy.budget = Budget(table.decisions, (), [(problem.cost, weight)])
    reached = torch.ones(len(sizes), dtype=torch.bool)
    for step in range(STEPS):
        draw = policy.draw(Phase.ARCHITECTURE, step / STEPS)
        loss = 1 - table.valid[table.rows(draw.weights)].float() / 100
        policy.learn(Feedback(loss, None, reached, _none, _none), draw, step / STEPS)
    return policy.distribution.logits


def _none(*_: object) -> Tensor:
    raise NotImplementedError


def knapsack(problem: Problem, logits: Tensor, limit: float) -> Architecture | None:
    """The most likely architecture within the limit; a prediction is measured, and the limit tightened."""
    rows = logits.double().log_softmax(-1).tolist()
    own = zip(problem.table.decisions.items(), rows, strict=True)
    values = {(name, one): row[place] for (name, ones), row in own for place, one in enumerate(ones)}

    def within(most: float) -> Architecture:
        return most_valuable(values, problem.table.decisions, [Limit(problem.cost, most)])

    def measure(one: Architecture) -> float:
        return float(problem.real[problem.table.row(one)])

    try:
        return tighten(
            within, measure, Limit(problem.cost, limit), rounds=1 if problem.exact else ROUNDS
        ).architecture
    except (Infeasible, ValueError):
        return None


def best_argmax(problem: Problem, logits: list[Tensor], limit: float) -> Architecture | None:
    """Of the modes within the limit the one that validates best."""
    table = problem.table
    modes = [table.architectures[int(table.rows(Distribution(one).mode()))] for one in logits]
    within = [one for one in modes if problem.real[table.row(one)] <= limit]
    return max(within, key=lambda one: float(table.valid[table.row(one)]), default=None)


def rejected(problem: Problem, logits: Tensor, limit: float, random: torch.Generator) -> Architecture | None:
    """The first draw within the limit."""
    draws = Distribution(logits.expand(REJECTED, *logits.shape)).sample(random)
    rows = problem.table.rows(draws)
    within = torch.from_numpy(problem.real)[rows] <= limit
    return problem.table.architectures[int(rows[within][0])] if within.any() else None


def judge(problem: Problem, method: str, limit: float, seed: int, answer: Architecture | None) -> dict[str, Any]:
    table = problem.table
    fits = answer is not None and problem.real[table.row(answer)] <= limit
    taken = answer if answer is not None and fits else table.architectures[int(problem.real.argmin())]
    test = table.test.numpy()
    best = float(test[problem.real <= limit].max())
    accuracy = float(test[table.row(taken)])
    return {
        "table": table.name,
        "cost": problem.cost.name,
        "limit": limit,
        "seed": seed,
        "method": method,
        "within": bool(fits),
        "accuracy": round(accuracy, 3),
        "regret": round(best - accuracy, 3),
    }


if __name__ == "__main__":
    main()
