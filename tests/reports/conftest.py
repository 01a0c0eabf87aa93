"""A synthetic study, as a search would have left it, and a table that knows how good its cells are."""

import itertools
import json
import math
import random
from functools import cached_property
from types import SimpleNamespace

import pytest

DECISIONS = ("0->1", "0->2", "1->2", "0->3", "1->3", "2->3")
OPERATIONS = ("skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3", "none")
ACTIVATIONS = ("relu", "tanh", "sigmoid", "identity", "zero")
WORTH = {"nor_conv_3x3": 1.0, "nor_conv_1x1": 0.75, "skip_connect": 0.6, "avg_pool_3x3": 0.1, "none": 0.0}
WORTH |= {"relu": 1.0, "tanh": 0.75, "identity": 0.6, "sigmoid": 0.1, "zero": 0.0}
BY_PROCESS_BEST = ("reinforce", "enas", "gdas", "random")
PACE = {"advantage": 3.0, "gdas": 2.0, "parsec": 1.6, "reinforce": 0.5, "proxyless": 1.2, "random": 0.0}
PULL = {"advantage": 0.6, "exact_advantage": 0.6, "reinforce": 0.1, "gdas": 0.3, "parsec": 0.4}
SECONDS_AN_EPOCH = {"darts": 4.4, "snas": 4.6, "nasp": 2.9, "proxyless": 1.7, "parsec": 2.1}
PROVENANCE = {
    "command": "advnas cifar10 --strategies advantage --seeds 3",
    "commit": "0123abc",
    "machine": "A processor, 1 threads",
    "versions": "Python 3.11.2, torch 2.6.0",
    "time": "2021-02-03T04:05:06+00:00",
}


class SyntheticAccuracies:
    """Convolutions are good, pooling is bad, and a cell whose output sees nothing guesses: 10 %."""

    def accuracy(self, cell, dataset="cifar10", split="test"):
        worth = 0.0
        for path in (("0->3",), ("0->1", "1->3"), ("0->2", "2->3"), ("0->1", "1->2", "2->3")):
            if all(cell[edge] not in ("none", "zero") for edge in path):
                worth += sum(WORTH[cell[edge]] for edge in path)
        return 10.0 if worth == 0 else 94.4 - 8 * math.exp(-0.3 * worth)

    def percentile(self, cell, dataset="cifar10", split="test"):
        own = self.accuracy(cell)
        return 100 * sum(other < own for other in self._all) / len(self._all)

    def regret(self, cell, dataset="cifar10", split="test"):
        return max(self._all) - self.accuracy(cell)

    def entry(self, cell):
        return SimpleNamespace(params=0.07 + sum(0.24 * (WORTH[operation] > 0.9) for operation in cell.values()))

    @cached_property
    def _all(self):
        cells = itertools.product(OPERATIONS, repeat=len(DECISIONS))
        return [self.accuracy(dict(zip(DECISIONS, cell, strict=True))) for cell in cells]


def write_synthetic_study(
    folder,
    strategies=("advantage", "random"),
    seeds=2,
    records=3,
    zero=False,
    unfinished=(),
    experiment="cifar10",
):
    """The folder that searches of these strategies would leave. unfinished: run names without a result."""
    warmup = 8.0 if experiment == "cifar10" else 0.0
    settings = {"preset": "small", "zero": zero, "warmup": warmup, "network": {"channels": 8, "cells": 1}}
    operations = ACTIVATIONS if experiment == "ptb" else OPERATIONS if zero else OPERATIONS[:-1]
    folder.mkdir(parents=True, exist_ok=True)
    about = {"experiment": experiment, "title": experiment, "retrains": experiment != "cifar10"}
    (folder / "study.json").write_text(json.dumps(about | {"settings": settings}))
    for strategy, seed in itertools.product(strategies, range(seeds)):
        run = folder / "runs" / f"{strategy}-{seed}"
        run.mkdir(parents=True)
        by_process_best = strategy in (BY_PROCESS_BEST if experiment == "ptb" else ("random",))
        answer = "process_best" if by_process_best else "argmax"
        asked = {"strategy": strategy, "seed": seed, "answer": answer, "learns": strategy != "random"}
        (run / "run.json").write_text(json.dumps(asked))
        lines = list(measurements(strategy, seed, records, operations, warmup))
        pace = SECONDS_AN_EPOCH.get(strategy, 1.2) * (1 + 0.05 * seed)
        seconds = [round(pace * (line["epoch"] - warmup), 3) for line in lines]
        write_lines(run / "records.jsonl", lines)
        write_lines(
            run / "timing.jsonl",
            [{"epoch": line["epoch"], "seconds": time} for line, time in zip(lines, seconds, strict=True)],
        )
        if run.name not in unfinished:
            result = {
                "strategy": strategy,
                "seed": seed,
                "argmax": lines[-1]["argmax"],
                "process_best": lines[-1]["process_best"],
                "seconds": seconds[-1],
                "warmup_seconds": 9.5,
                "saved_bytes": 2**20 * (12 if strategy in ("darts", "snas", "nasp") else 3) + 1000 * seed,
                "provenance": PROVENANCE,
            }
            if experiment == "ptb":
                result["evaluation"] = retraining(strategy, lines[-1])
            (run / "result.json").write_text(json.dumps(result))
    return folder


def retraining(strategy, last):
    """What the paper's answer of a strategy is worth: the better its cell, the lower its perplexity."""
    by = "process best" if strategy in BY_PROCESS_BEST and last["process_best"] else "argmax"
    cell = last["argmax"] if by == "argmax" else last["process_best"]["architecture"]
    perplexity = 94.0 + 3 * (94.4 - SyntheticAccuracies().accuracy(cell))
    return {
        "by": by,
        "architecture": cell,
        "valid_perplexity": perplexity,
        "test_perplexity": perplexity - 4,
        "parameters": 7_000_000 + 90_000 * sum(operation != "zero" for operation in cell.values()),
        "best_epoch": 97,
    }


def measurements(strategy, seed, records, operations, warmup):
    """Theta walks from uniform towards the good operations, at the pace of the strategy and not without detours."""
    chance = random.Random(f"{strategy}-{seed}")
    logits = {decision: dict.fromkeys(operations, 0.0) for decision in DECISIONS}
    best, pace, pull = None, PACE.get(strategy, 1.0), PULL.get(strategy, 0.35)
    worth = {**WORTH, "none": 1.2 if strategy == "proxyless" else 0.0}
    for number in range(records):
        drawn = {decision: chance.choice(operations) for decision in DECISIONS}
        best = min((best, drawn), key=_loss) if best else drawn
        probabilities = {decision: _softmax(row) for decision, row in logits.items()}
        yield {
            "epoch": warmup + 4 * number,
            "step": round(100 * warmup) + 400 * number,
            "entropy": sum(_entropy(row.values()) for row in probabilities.values()) / len(DECISIONS),
            "probabilities": probabilities,
            "argmax": {decision: max(row, key=row.get) for decision, row in probabilities.items()},
            "process_best": {"architecture": best, "loss": _loss(best)} if number else None,
            "loss": 2.3 - 0.1 * pace * number + 0.2 * seed if number else None,
        }
        for row in logits.values():
            for operation in row:
                row[operation] += pace * (pull * worth[operation] + chance.gauss(0, 0.25))


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _loss(cell):
    return 3 - 0.025 * SyntheticAccuracies().accuracy(cell)


def _softmax(row):
    powers = {operation: math.exp(logit) for operation, logit in row.items()}
    return {operation: power / sum(powers.values()) for operation, power in powers.items()}


def _entropy(probabilities):
    return -sum(probability * math.log(probability) for probability in probabilities if probability)


@pytest.fixture
def write_study():
    return write_synthetic_study


@pytest.fixture(scope="session")
def accuracies():
    return SyntheticAccuracies()


@pytest.fixture(scope="session")
def study_folder(tmp_path_factory):
    """Sparse, dense, random, and one run that is still on its way; to be read, not to be changed."""
    return write_synthetic_study(
        tmp_path_factory.mktemp("study"),
        ("advantage", "proxyless", "darts", "random"),
        unfinished=("proxyless-1",),
    )


@pytest.fixture(scope="session")
def ptb_folder(tmp_path_factory):
    """Searches whose answers were retrained, and one on its way; to be read, not to be changed."""
    return write_synthetic_study(
        tmp_path_factory.mktemp("ptb"),
        ("advantage", "gdas", "proxyless", "random"),
        records=4,
        unfinished=("gdas-1",),
        experiment="ptb",
    )


@pytest.fixture(scope="session")
def ptb_report(ptb_folder):
    """The files of the report on that study; the page comes first."""
    return _write_report(ptb_folder, None)


@pytest.fixture(scope="session")
def report(study_folder, accuracies):
    """The files of the report on that study; the page comes first."""
    return _write_report(study_folder, accuracies)


def _write_report(folder, table):
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    from advnas.reports.page import write_report

    return write_report(folder, table)
