"""What do shared weights know? Kendall's tau between their ranking of architectures and training alone.

For every parent, way of drawing and seed: train the shared weights as the first half of a search does, with theta
fixed, and after some epochs compare the losses of random architectures under these weights with what the same
architectures reach when they are trained alone:

    nasbench201      the network of `advnas experiment cifar10 --preset laptop`; truth: the benchmark's table
    nasbench_macro   that of `advnas experiment macro --preset laptop`; truth: the benchmark's table
    recurrent4       that of `advnas experiment ptb --preset laptop`; truth: 20 cells, retrained as in that study
    recurrent16      the same, trained for 16 epochs instead of 4
    recurrent4_...   with a quarter of the rate; without dropout; a matrix per activation; nodes normalised

    uniform          every weight step draws every operation with the same probability
    fair             every operation of a decision is drawn once before one is drawn again (FairNAS)

Reported at every age: tau with its 95 % interval, tau among the better half by truth, tau between the rankings on
every other minibatch and on the rest (split-half), the deviation of the losses, and the truth of the architecture
with the lowest loss, of the ten lowest, and of all.

One file per (parent, draws, seed) is kept in the folder, so that the benchmark resumes where it was stopped.

    .venv/bin/python benchmarks/parent_ranking.py --folder F --quick
    .venv/bin/python benchmarks/parent_ranking.py --folder F --json
    .venv/bin/python benchmarks/parent_ranking.py --folder F --pages docs/results
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from advnas import Architecture, Draw, Search, tables
from advnas.answers.agreement import interval, kendall, split_half
from advnas.answers.ranking import draw_different
from advnas.answers.shared_loss import SharedLoss
from advnas.paper import cifar10, macro, ptb
from advnas.randomness import generator
from advnas.records.files import write_atomically
from advnas.records.provenance import provenance
from advnas.search import LossOf
from advnas.strategies import Phase, State, Strategy
from advnas.strategies.random import Random
from advnas.studies.study import Study
from advnas.tasks.data_folder import data_folder
from kept import kept, read_all
from recurrent_parents import RecurrentParent, alone, own_weights, study_with

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Run = dict[str, Any]
Truth = Callable[[Sequence[Architecture], Search], list[float]]  # the higher the better
Judges = Callable[[Any], dict[str, list[LossOf]]]  # data of a study -> names -> minibatches to judge by


@dataclass(frozen=True)
class Parent:
    """A network whose weights are shared.

    study: makes searches and data; its length is that of the learning rate's schedule. ages: epochs after which it
    is judged. architectures: how many. truth: what they are worth. judges: on which minibatches they are compared.
    """

    study: Study
    ages: Sequence[int]
    architectures: int
    truth: Truth
    judges: Judges


@dataclass(frozen=True, kw_only=True)
class Fair(Random):
    """Random search that draws every operation of a decision once before it draws one of them again."""

    waiting: list[Tensor] = field(default_factory=list)

    def draw(
        self, logits: Tensor, state: State, phase: Phase, progress: float | None, generator: torch.Generator
    ) -> Draw:
        """Draw the next of a block of permutations, one per decision."""
        if not self.waiting:
            keys = torch.rand(logits.shape, generator=generator).masked_fill(logits.isneginf(), torch.inf)
            operations = int(logits.isfinite().sum(-1).min())
            self.waiting.extend(
                torch.nn.functional.one_hot(keys.argsort(-1), logits.shape[-1]).unbind(-2)[:operations]
            )
        return Draw.bare(self.waiting.pop().to(logits.dtype))


DRAWS: dict[str, Callable[[], Strategy]] = {"uniform": Random, "fair": Fair}
_SAMPLE = 77  # sets the architectures that are compared apart from other randomness of a seed
_MINIBATCHES = 12
_CELLS = 20  # of the recurrent network


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    if options.pages is not None:
        write_pages(stored(options.folder), options.pages)
        return
    runs = list(measure_all(options))
    print(json.dumps(runs, indent=1) if options.json else "\n".join(map(told, runs)))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parents", nargs="+", choices=[*PARENTS], default=["nasbench201", "nasbench_macro"])
    parser.add_argument("--draws", nargs="+", choices=[*DRAWS], default=[*DRAWS])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--folder", type=Path, required=True, help="of the results; outside of the checkout")
    parser.add_argument(
        "--pages", type=Path, metavar="FOLDER", help="measure nothing; write the tables and the figure of the docs"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="one epoch, few architectures, one seed; no results")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def measure_all(options: argparse.Namespace) -> Iterator[Run]:
    """Measure what the folder does not have yet."""
    for seed in options.seeds[:1] if options.quick else options.seeds:
        for name in options.parents:
            for draws in options.draws:
                path = options.folder / f"{'quick-' * options.quick}{name}-{draws}-{seed}.json"
                yield kept(path, partial(measure, name, draws, seed, options))


def stored(folder: Path) -> list[Run]:
    """Read all results of a folder but the quick ones."""
    return [run for name in PARENTS for run in read_all(folder.glob(f"{name}-*.json"))]


def measure(name: str, draws: str, seed: int, options: argparse.Namespace) -> Run:
    """Train one parent, and judge it at every age."""
    started = time.perf_counter()
    parent = PARENTS[name](options.folder)
    if options.quick:
        parent = replace(parent, ages=(1,), architectures=6)
    search, data = parent.study.begin("random", seed)
    search.policy.strategy = DRAWS[draws]()
    search.progress.set_length(parent.study.length.turns, parent.study.length.turns - 1)
    random = generator(_SAMPLE, seed)
    chosen = [
        search.space.architecture(one) for one in draw_different(search.distribution, parent.architectures, random)
    ]
    truth = parent.truth(chosen, search)
    ages: list[Run] = []
    for age in parent.ages:
        while search.weight_steps < age * parent.study.length.turns // parent.study.length.epochs:
            search.weight_step(data.losses(search)[0])
        for judge, losses in parent.judges(data).items():
            found = compare(search, chosen, losses, truth)
            ages.append({"epochs": age, "steps": search.weight_steps, "judge": judge, **found})
    return {
        "parent": name,
        "draws": draws,
        "seed": seed,
        "schedule": parent.study.length.epochs,
        "architectures": len(chosen),
        "truth_mean": statistics.fmean(truth),
        "truth_best": max(truth),
        "truth": truth,
        "ages": ages,
        "seconds": round(time.perf_counter() - started, 1),
        **provenance(),
    }


def compare(
    search: Search, chosen: Sequence[Architecture], losses: Sequence[LossOf], truth: Sequence[float]
) -> Run:
    """Compare the ranking by shared weights with the truth."""
    judged = SharedLoss(search, losses, lambda model, loss_of: loss_of(model))
    found = [judged.judge(one).losses for one in chosen]
    shared = [statistics.fmean(own) for own in found]
    minus = [-value for value in truth]
    tau = kendall(shared, minus)
    better = sorted(range(len(truth)), key=lambda number: minus[number])[: len(truth) // 2]
    lowest = sorted(range(len(shared)), key=lambda number: shared[number])
    return {
        "tau": tau,
        "interval": list(interval(tau, len(truth))),
        "tau_better_half": kendall([shared[number] for number in better], [minus[number] for number in better]),
        "split_half": split_half(found),
        "deviation": statistics.stdev(shared),
        "best": truth[lowest[0]],
        "top10": statistics.fmean(truth[number] for number in lowest[:10]),
        "shared": shared,
    }


def told(run: Run) -> str:
    lines = [f"{run['parent']}, {run['draws']} draws, seed {run['seed']}, {run['seconds']:.0f} s"]
    for age in run["ages"]:
        low, high = age["interval"]
        lines.append(
            f"  {age['epochs']:3d} epochs, {age['judge']}: tau {age['tau']:+.2f} ({low:+.2f} to {high:+.2f}), "
            f"split-half {age['split_half']:+.2f}, deviation {age['deviation']:.3f}, best {age['best']:.2f}, "
            f"top 10 {age['top10']:.2f} (mean {run['truth_mean']:.2f})"
        )
    return "\n".join(lines)


# The parents


def table_truth(name: str) -> Truth:
    """Look accuracies up in a benchmark's table."""

    def truth(chosen: Sequence[Architecture], search: Search) -> list[float]:
        benchmark = tables.get(name)
        known = benchmark.load(benchmark.find(data_folder(None)))
        return [known.accuracy(one) for one in chosen]

    return truth


def validation(data: Any) -> dict[str, list[LossOf]]:
    """The first minibatches that theta would learn from."""
    return {"validation": list(data.validation_pass(_MINIBATCHES)[1])[:_MINIBATCHES]}


def images_parent(study: Any, ages: Sequence[int]) -> Parent:
    return Parent(study, ages, 150, table_truth(study.table), validation)


def recurrent(folder: Path, ages: Sequence[int], study: RecurrentParent) -> Parent:
    """Cells of the recurrent network, each of which is retrained to know what it is worth."""

    def truth(chosen: Sequence[Architecture], search: Search) -> list[float]:
        return [-alone(one, search.seed, folder) for one in chosen]

    def judges(data: ptb.PtbText) -> dict[str, list[LossOf]]:
        return {name: validation(text)["validation"] for name, text in study.texts(data).items()}

    return Parent(study, ages, _CELLS, truth, judges)


PARENTS: dict[str, Callable[[Path], Parent]] = {
    "nasbench201": lambda folder: images_parent(
        cifar10.Cifar10(cifar10.PRESETS["laptop"], data_folder(None)), (1, 3, 6, 12, 24)
    ),
    "nasbench_macro": lambda folder: images_parent(
        macro.Macro(macro.PRESETS["laptop"], data_folder(None)), (1, 3, 6, 12)
    ),
    "recurrent4": lambda folder: recurrent(folder, (1, 2, 4), study_with()),
    "recurrent16": lambda folder: recurrent(folder, (2, 4, 8, 16), study_with(epochs=16)),
    "recurrent4_rate": lambda folder: recurrent(folder, (1, 2, 4), study_with(weight_rate=5.0)),
    "recurrent4_dropout": lambda folder: recurrent(folder, (1, 2, 4), study_with(dropout=0.0)),
    "recurrent4_own": lambda folder: recurrent(folder, (1, 2, 4), study_with(own_weights)),
    "recurrent4_normalised": lambda folder: recurrent(folder, (1, 2, 4), study_with(normalise=True)),
}


# The page


def write_pages(runs: Sequence[Run], folder: Path) -> None:
    """Write what docs/results/parents.md shows: a table per kind of truth, and the figure."""
    images = [run for run in runs if not run["parent"].startswith("recurrent")]
    longer = [run for run in runs if run["parent"] == LONGER]
    cells = [run for run in runs if run not in images and run not in longer]
    if images:
        write_atomically(folder / "parents.json", json.dumps(table(images, IMAGE_COLUMNS), indent=1) + "\n")
        draw(images, folder / "parents.png")
    for name, own in (("parents_recurrent", cells), ("parents_recurrent_longer", longer)):
        if own:
            write_atomically(folder / f"{name}.json", json.dumps(table(own, CELL_COLUMNS), indent=1) + "\n")


def table(runs: Sequence[Run], fields: Mapping[str, tuple[str, str]]) -> Run:
    """A row per parent, way of drawing, judge and age; one number per seed."""
    columns = [{"title": title, "field": title} for title in ("parent", "draws")]
    columns += [{"title": "judged on", "field": "judge"}] if fields is CELL_COLUMNS else []
    columns += [{"title": "epoch", "field": "epochs", "format": "d"}]
    columns += [
        {"title": title, "field": name} | ({"format": form} if form else {})
        for name, (title, form) in fields.items()
    ]
    rows = [
        {
            "parent": f"{TITLES[name]} ({own[0][0]['schedule']} epochs)",
            "draws": draws,
            "judge": judge,
            "epochs": epochs,
        }
        | {name: cell(own, name) for name in fields}
        for (name, draws, judge, epochs), own in grouped(runs).items()
    ]
    return {"source": source(runs), "columns": columns, "rows": rows}


def cell(ages: Sequence[tuple[Run, Run]], name: str) -> list[float] | str | None:
    """One number per seed; of the interval of tau, that of a single seed."""
    if name != "interval":
        return [age[name] for _, age in ages]
    low, high = ages[0][1]["interval"]
    return f"{low:+.2f} to {high:+.2f}" if len(ages) == 1 else None


IMAGE_COLUMNS = {
    "tau": ("tau", "+.2f"),
    "tau_better_half": ("tau, better half", "+.2f"),
    "split_half": ("split-half", "+.2f"),
    "deviation": ("deviation of the losses", ".3f"),
    "best": ("accuracy of the first", ".2f"),
    "top10": ("of the first ten", ".2f"),
}
CELL_COLUMNS = {
    "tau": ("tau", "+.2f"),
    "interval": ("95 % interval", ""),
    "split_half": ("split-half", "+.2f"),
    "deviation": ("deviation of the losses", ".3f"),
}
LONGER = "recurrent16"  # has a table of its own
TITLES = {
    "nasbench201": "NAS-Bench-201",
    "nasbench_macro": "NAS-Bench-Macro",
    "recurrent4": "as in the study",
    "recurrent16": "as in the study",
    "recurrent4_rate": "a quarter of the learning rate",
    "recurrent4_dropout": "without dropout",
    "recurrent4_own": "a matrix per activation",
    "recurrent4_normalised": "nodes normalised",
}


def grouped(runs: Sequence[Run]) -> dict[tuple[str, str, str, int], list[tuple[Run, Run]]]:
    """The ages of all seeds, by parent, way of drawing, judge and number of epochs."""
    found: dict[tuple[str, str, str, int], list[tuple[Run, Run]]] = {}
    for run in runs:
        for age in run["ages"]:
            found.setdefault((run["parent"], run["draws"], age["judge"], age["epochs"]), []).append((run, age))
    return found


def source(runs: Sequence[Run]) -> dict[str, str]:
    seeds, commits = sorted({run["seed"] for run in runs}), sorted({run["commit"] for run in runs})
    parents = " ".join(dict.fromkeys(run["parent"] for run in runs))
    return {
        "command": f"benchmarks/parent_ranking.py --folder F --parents {parents}",
        "seeds": ", ".join(map(str, seeds)),
        "commit" if len(commits) == 1 else "commits": ", ".join(commits),
        "machine": "; ".join(sorted({f"{run['machine']}, {run['versions']}" for run in runs})),
    }


def draw(runs: Sequence[Run], path: Path) -> None:
    """Draw tau over the weight steps, a line per seed, and the accuracy of the first ten below it."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(run["parent"] for run in runs))
    figure = Figure(figsize=(4.6 * len(names), 6.4), layout="constrained")
    grid = figure.subplots(2, len(names), sharex="col", sharey="row", squeeze=False)
    for column, name in enumerate(names):
        own = [run for run in runs if run["parent"] == name]
        draw_lines(grid[0][column], own, "tau")
        draw_lines(grid[1][column], own, "top10")
        grid[1][column].axhline(statistics.fmean(run["truth_mean"] for run in own), color="#333333", lw=0.8, ls=":")
        grid[0][column].axhline(0, color="#333333", lw=0.8, ls=":")
        grid[0][column].set_title(TITLES[name], fontsize=10)
        grid[1][column].set_xlabel("weight steps")
    grid[0][0].set_ylabel("Kendall's tau with the table")
    grid[1][0].set_ylabel("accuracy of the ten first ranked [%]\n(dotted: mean of all)")
    grid[0][-1].legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=130)


def draw_lines(axes: "Axes", runs: Sequence[Run], figure: str) -> None:
    """One line per seed."""
    from matplotlib.ticker import NullLocator

    steps: list[int] = []
    for run in runs:
        first = run["seed"] == min(other["seed"] for other in runs)
        steps, values = [age["steps"] for age in run["ages"]], [age[figure] for age in run["ages"]]
        axes.plot(
            steps,
            values,
            color=LINES[run["draws"]],
            lw=1.4,
            marker="o",
            ms=4,
            label=run["draws"] if first else None,
        )
    axes.set_xscale("log")
    axes.set_xticks(steps, [f"{step:,}" for step in steps])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


LINES = {"uniform": "#1d4e89", "fair": "#c1121f"}


if __name__ == "__main__":
    main()
