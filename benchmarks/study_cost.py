"""How long would a whole study take on this machine? A few of its own steps are run, at full size, and counted up.

For every strategy: seconds of a warm-up step and of a turn after it (a weight step and an architecture step), and
the hours that all steps of one run would take; for Penn Treebank also those of retraining.

    .venv/bin/python benchmarks/study_cost.py cifar10 --preset paper --json
    .venv/bin/python benchmarks/study_cost.py ptb --preset paper --json
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from advnas.paper import cifar10, ptb
from advnas.studies.study import Study
from advnas.tasks.data_folder import data_folder
from advnas.tasks.penn_treebank import CarriedLoss, Pass

Cost = dict[str, float]


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    folder = data_folder(options.data_folder)
    experiment: Study
    names: tuple[str, ...]
    if options.experiment == "cifar10":
        experiment, names = cifar10.Cifar10(cifar10.PRESETS[options.preset], folder), cifar10.STRATEGIES
    else:
        experiment, names = ptb.Ptb(ptb.PRESETS[options.preset], folder), ptb.STRATEGIES
    costs = {name: cost(experiment, name, options.turns) for name in options.strategies or names}
    if isinstance(experiment, ptb.Ptb):
        costs["retraining"] = retraining_cost(experiment, options.turns)
    if options.json:
        print(json.dumps(costs, indent=1))
        return
    for name, row in costs.items():
        print(f"{name:16s}", "  ".join(f"{key} {value:8.3f}" for key, value in row.items()))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=["cifar10", "ptb"])
    parser.add_argument("--preset", choices=["quick", "laptop", "paper"], default="paper")
    parser.add_argument("--strategies", nargs="*", default=[])
    parser.add_argument("--turns", type=int, default=5, help="of each kind; their mean counts, the first one aside")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--data-folder", type=Path, default=None)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def cost(experiment: Study, name: str, turns: int) -> Cost:
    search, data = experiment.begin(name, 0)

    def turn() -> None:
        search.turn(*data.losses(search))

    row: Cost = {}
    if experiment.length.warmup:
        row["warmup_step"] = mean_seconds(turn, turns)
        search.progress.weight_steps = experiment.length.warmup_turns
    row["turn"] = mean_seconds(turn, turns)
    whole = (
        experiment.length.warmup_turns * row.get("warmup_step", 0.0)
        + (experiment.length.turns - experiment.length.warmup_turns) * row["turn"]
    )
    return row | {"hours_a_run": whole / 3600}


def retraining_cost(experiment: ptb.Ptb, turns: int) -> Cost:
    space = experiment.make_search("random", 0).space
    network = space.derive({decision.name: "relu" for decision in space.decisions}, fresh=0)
    parameters = list(network.parameters())
    optimizer = torch.optim.SGD(parameters, lr=experiment.settings.weight_rate)
    segments, loss_of = list(Pass(experiment.make_data(0).segments, "retraining")), CarriedLoss()
    step = partial(
        train_step, network, parameters, optimizer, loss_of, iter(segments), experiment.settings.weight_clip
    )
    seconds = mean_seconds(step, turns)
    steps = experiment.settings.retrain_epochs * len(segments)
    return {"step": seconds, "hours_a_run": steps * seconds / 3600, "parameters_all_relu": count(parameters)}


def train_step(
    network: Any, parameters: Any, optimizer: Any, loss_of: CarriedLoss, batches: Any, clip: float
) -> None:
    optimizer.zero_grad(set_to_none=True)
    loss_of(network, next(batches)).backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(parameters, clip)
    optimizer.step()


def count(parameters: list[Any]) -> int:
    return sum(parameter.numel() for parameter in parameters)


def mean_seconds(step: Callable[[], None], times: int) -> float:
    step()
    start = time.perf_counter()
    for _ in range(times):
        step()
    return (time.perf_counter() - start) / times


if __name__ == "__main__":
    main()
