"""How do the time and the saved bytes of a step grow with the number of widths of a search over widths?

The same network is searched twice, with 4 and with 64 widths in each of its bodies. The largest width is the same,
and the steps of both run the same drawn widths beside the same rivals, which are among the 4, since a step costs
what the drawn width costs. Everything is measured in one run, interleaved, because machines change their speed from
minute to minute: seconds of the processor with one thread, the fastest of several repeats for every drawn
architecture, summed.

    .venv/bin/python benchmarks/width_cost.py --json
"""

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from advnas import Width
from advnas.randomness import generator, seed_of
from advnas.search import LossOf
from advnas.search.plan import saved_bytes
from aimed import AimedSearch, Costs, draw_architectures, keep_freed_memory

FEW, MANY = 4, 64
STRATEGIES = ("contrast", "advantage")
KINDS = ("weight_step", "architecture_step", "joint_step")
Key = tuple[str, int]  # a strategy and a number of widths


@dataclass(frozen=True)
class Setting:
    """A residual MLP and its minibatch, and how often each step is timed.

    features: of the trunk, between the bodies. inner: the largest width of every body.
    """

    features: int = 256
    inner: int = 1024
    bodies: int = 4
    batch: int = 256
    architectures: int = 8
    repeats: int = 5
    seed: int = 0


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(1)
    keep_freed_memory()
    settings = [Setting(repeats=options.repeats), Setting(features=64, inner=256, repeats=options.repeats)]
    if options.quick:
        settings = [Setting(features=8, inner=64, batch=8, architectures=2, repeats=1)]
    results = {f"body of {setting.inner}": measure(setting) for setting in settings}
    if options.json:
        print(json.dumps(results, indent=1))
        return
    for size, rows in results.items():
        for name, row in rows.items():
            print(f"{size}, {name:9s}", "  ".join(f"{key} {value:.3f}" for key, value in row.items()))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--repeats", type=int, default=Setting.repeats, help="the fastest of these counts")
    parser.add_argument("--quick", action="store_true", help="a network of a few units, once: does it run?")
    return parser.parse_args()


def measure(setting: Setting) -> dict[str, dict[str, float]]:
    """For every strategy: time and saved bytes of each kind of step with 64 widths, as ratios to those with 4."""
    loss_of = make_loss(setting)
    keys = itertools.product(STRATEGIES, (FEW, MANY))
    subjects = {(name, many): AimedSearch(make_network(setting, many), name) for name, many in keys}
    costs = {key: Costs() for key in subjects}
    drawn = list(draw_architectures(make_network(setting, FEW), setting.architectures, setting.seed))
    for number, (architecture, rivals) in enumerate(drawn):
        print(f"body of {setting.inner}: architecture {number + 1} of {len(drawn)}", file=sys.stderr)
        for key, subject in subjects.items():
            for kind, step in subject.steps(loss_of).items():
                subject.aim(architecture, rivals)
                costs[key].bytes[kind] += saved_bytes(step)
        for repeat in range(setting.repeats):
            for kind in KINDS:
                for key, subject in turned(subjects, repeat):
                    subject.aim(architecture, rivals)  # not a part of the step
                    costs[key].add(kind, number, seconds(subject.steps(loss_of)[kind]))
    return {name: compared(costs[name, FEW], costs[name, MANY], len(drawn)) for name in STRATEGIES}


def compared(few: Costs, many: Costs, architectures: int) -> dict[str, float]:
    """Time and saved bytes with many widths as ratios to those with few; how long a step with few takes."""
    return (
        {kind: round(many.seconds(kind) / few.seconds(kind), 3) for kind in KINDS}
        | {f"{kind}_bytes": round(many.bytes[kind] / few.bytes[kind], 3) for kind in KINDS}
        | {f"{kind}_milliseconds": round(1e3 * few.seconds(kind) / architectures, 2) for kind in KINDS}
    )


class Body(nn.Module):
    """x + f(x), where f has an open width."""

    def __init__(self, features: int, inner: int, widths: int, name: str) -> None:
        super().__init__()
        body = nn.Sequential(nn.Linear(features, inner), nn.GELU(), nn.Linear(inner, features))
        self.open = Width(body, [inner * (1 + number) // widths for number in range(widths)], name=name)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = x + self.open(x)
        return output


def make_network(setting: Setting, widths: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(setting.seed))
        bodies = [Body(setting.features, setting.inner, widths, f"body {k}") for k in range(setting.bodies)]
        return nn.Sequential(*bodies, nn.Linear(setting.features, 10))


def make_loss(setting: Setting) -> LossOf:
    random = generator(setting.seed)
    inputs = torch.randn(setting.batch, setting.features, generator=random)
    labels = torch.randint(10, (setting.batch,), generator=random)
    return lambda model: F.cross_entropy(model(inputs), labels)


def turned(subjects: dict[Key, AimedSearch], repeat: int) -> list[tuple[Key, AimedSearch]]:
    """The subjects, in the reverse order in every second repeat: none is always the one that follows another."""
    return list(subjects.items())[:: -1 if repeat % 2 else 1]


def seconds(step: Callable[[], object]) -> float:
    start = time.process_time()
    step()
    return time.process_time() - start


if __name__ == "__main__":
    main()
