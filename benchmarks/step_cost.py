"""What does a search step cost, next to plain training of the same architectures?

Time of every strategy's steps on the NAS-Bench-201 network, and bytes kept for the backward pass, as ratios to
plain training of the derived modules. Everything is measured in one run, interleaved, on the same uniformly
drawn architectures, because machines change their speed from minute to minute. Where a strategy compares the drawn
operations with rivals, these are drawn uniformly as well, once per architecture: they cost from a dot product to a
convolution, and the fastest of several repeats would be that with the cheapest rivals.

    .venv/bin/python benchmarks/step_cost.py --json
"""

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import nn
from torch.nn import functional as F

from advnas import Architecture, SearchSpace, strategies
from advnas.randomness import generator, seed_of
from advnas.search import PAPER_WEIGHTS, LossOf
from advnas.search.device import keep_kernels
from advnas.search.plan import saved_bytes
from advnas.spaces.nasbench201 import ConvolutionCellNetwork, nasbench201_candidates
from aimed import AimedSearch, Costs, draw_architectures, keep_freed_memory

MANY = 16  # copies of NAS-Bench-201's four operations: 64 candidates per edge
GROWN = {"advantage", "contrast"}  # strategies that are measured with so many as well


@dataclass(frozen=True)
class Setting:
    """The network, its data, and how often each step is timed."""

    channels: int = 16
    cells: int = 5
    batch: int = 64
    side: int = 32
    architectures: int = 20
    balanced: bool = False
    repeats: int = 2
    seed: int = 0


Measure = dict[str, float]


def main() -> None:
    options = parse_arguments()
    keep_freed_memory()
    keep_kernels()
    setting = Setting(architectures=options.architectures, balanced=options.balanced, repeats=options.repeats)
    results = measure(setting, options.strategies, limited=options.limit)
    if options.json:
        print(json.dumps(results, indent=1))
        return
    for name, row in results.items():
        print(f"{name:16s}", "  ".join(f"{key} {value:5.2f}" for key, value in row.items()))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--strategies", nargs="+", default=list(strategies.names()))
    parser.add_argument("--architectures", type=int, default=Setting.architectures)
    parser.add_argument(
        "--balanced",
        action="store_true",
        help="12 architectures that have every operation, beside every rival, once at every edge: 20 drawn ones "
        "happen to have 20 convolutions of 3 x 3 and 41 skip connections, where 30 each are to be expected",
    )
    parser.add_argument("--limit", action="store_true", help="every strategy once more, with a limit of parameters")
    parser.add_argument("--repeats", type=int, default=Setting.repeats, help="the fastest of these counts")
    return parser.parse_args()


def measure(setting: Setting, names: list[str], *, limited: bool = False) -> dict[str, Measure]:
    """For every strategy: architecture_step, weight_step, joint_step and saved_bytes, as ratios."""
    loss_of = make_loss(setting)
    subjects: dict[str, Subject] = {name: AimedSearch(make_network(setting), name) for name in names}
    for name in names if limited else ():
        subjects[f"{name}, limit"] = AimedSearch(make_network(setting), name, limit={"parameters": "1M"})
    for name in filter(GROWN.__contains__, names):
        subjects[f"{name}, 64 candidates"] = AimedSearch(make_network(setting, MANY), name)
    costs = {name: Costs() for name in [*subjects, "plain"]}
    uniform = draw_architectures(make_network(setting), setting.architectures, setting.seed)
    drawn = list(balanced_architectures(setting) if setting.balanced else uniform)
    for number, (architecture, rivals) in enumerate(drawn, start=1):
        print(f"architecture {number} of {len(drawn)}", file=sys.stderr)
        subjects["plain"] = PlainTraining(architecture, setting)
        steps = [
            (subject, costs[name], kind, step)
            for name, subject in subjects.items()
            for kind, step in subject.steps(loss_of).items()
        ]
        for subject, cost, kind, step in steps:
            subject.aim(architecture, rivals)
            cost.bytes[kind] += saved_bytes(step)
        for _ in range(setting.repeats):
            for subject, cost, kind, step in steps:
                subject.aim(architecture, rivals)  # not a part of the step
                cost.add(kind, number, seconds(step))
    return ratios(costs)


def ratios(costs: dict[str, Costs]) -> dict[str, Measure]:
    plain = costs.pop("plain")
    grown = {name: costs.pop(f"{name}, 64 candidates") for name in GROWN if name in costs}
    results: dict[str, Measure] = {}
    for name, cost in costs.items():
        kinds = ("architecture_step", "weight_step", "joint_step")
        results[name] = {kind: round(cost.seconds(kind) / plain.seconds("plain"), 3) for kind in kinds}
        results[name]["saved_bytes"] = round(cost.bytes["architecture_step"] / plain.bytes["plain"], 3)
    for name, many in grown.items():
        few = costs[name]
        for kind in ("architecture_step", "weight_step", "joint_step"):
            growth = many.seconds(kind) / few.seconds(kind)
            results[name][f"{kind}_64_to_4_candidates"] = round(growth, 3)
        growth = many.bytes["architecture_step"] / few.bytes["architecture_step"]
        results[name]["saved_bytes_64_to_4_candidates"] = round(growth, 3)
    return results


def make_loss(setting: Setting) -> LossOf:
    random = generator(setting.seed)
    images = torch.randn(setting.batch, 3, setting.side, setting.side, generator=random)
    images = images.to(memory_format=torch.channels_last)
    labels = torch.randint(10, (setting.batch,), generator=random)
    return lambda model: F.cross_entropy(model(images), labels)


def make_network(setting: Setting, copies: int = 1) -> nn.Module:
    def candidates(channels: int) -> dict[str, nn.Module]:
        sets = [nasbench201_candidates(channels) for _ in range(copies)]
        return {
            name if copy == 0 else f"{name}_{copy}": candidate
            for copy, named in enumerate(sets)
            for name, candidate in named.items()
        }

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(setting.seed))
        network = ConvolutionCellNetwork(channels=setting.channels, cells=setting.cells, candidates=candidates)
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def balanced_architectures(setting: Setting) -> Iterator[tuple[Architecture, Architecture]]:
    """The same, with every pair of an operation and its rival once at every decision, in any order."""
    decisions, random = SearchSpace(make_network(setting)).decisions, generator(setting.seed, 3)
    names = [decision.name for decision in decisions]
    pairs = [list(itertools.permutations(decision.operations, 2)) for decision in decisions]
    orders = [torch.randperm(len(some), generator=random).tolist() for some in pairs]
    for places in zip(*orders, strict=True):
        here = [some[place] for some, place in zip(pairs, places, strict=True)]
        chosen, rivals = (dict(zip(names, row, strict=True)) for row in zip(*here, strict=True))
        yield Architecture(chosen), Architecture(rivals)


class Subject(Protocol):
    """What is measured."""

    def aim(self, architecture: Architecture, rivals: Architecture) -> None:
        """Make the next step run this architecture, and compare it with these rivals if it has any."""

    def steps(self, loss_of: LossOf) -> dict[str, Callable[[], object]]:
        """The kinds of steps it can take."""


class PlainTraining:
    """One architecture, trained as anybody would."""

    def __init__(self, architecture: Architecture, setting: Setting) -> None:
        self._model = SearchSpace(make_network(setting)).derive(architecture)
        self._parameters = list(self._model.parameters())
        self._optimizer = PAPER_WEIGHTS(self._parameters)

    def aim(self, architecture: Architecture, rivals: Architecture) -> None:
        pass

    def steps(self, loss_of: LossOf) -> dict[str, Callable[[], object]]:
        return {"plain": partial(self._step, loss_of)}

    def _step(self, loss_of: LossOf) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        loss_of(self._model).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self._optimizer.step()


def seconds(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
