"""Does a strategy push theta where the expected reward rises? By where choices stand, and the age of the parent.

For every network, age of the parent and seed: train the parent with uniform draws, compute the gradient of the
expected reward at uniform theta (over all architectures, or over a sample where there are too many), take steps of
every sparse strategy while theta stays uniform, and compare. Reported are cosines with the true gradient:

    mean        of the mean over all steps
    clipped     of the mean over all steps, each shortened to the median norm where it is longer
    step        the mean over the steps of the cosine of one step
    better_than percentage of architectures that are worse than the argmax of the mean

with their standard errors (bootstrap over the steps, and over the architectures of a sampled truth). The reward is
minus the loss on a fixed set of minibatches, which the steps use in turn. Strategies have their defaults, as at the
beginning of a search (GDAS: temperature 10). The first 100 steps of each are discarded, so that its averages
(REINFORCE's baseline, the zero rule of the advantage) have settled. PARSEC gathers 8 steps for one estimate.
ENAS is left out: it learns a controller, and theta gets no gradient.

One file per (network, age, seed) is kept in the folder, so that the benchmark resumes where it was stopped.

    .venv/bin/python benchmarks/credit_direction.py --quick
    .venv/bin/python benchmarks/credit_direction.py --folder F --json
    .venv/bin/python benchmarks/credit_direction.py --folder F --pages docs/results
"""

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from advnas import Draw, strategies
from advnas.randomness import generator, seed_of, seeded
from advnas.records.files import write_atomically
from advnas.records.provenance import provenance
from advnas.reports.curves import look
from advnas.testing.directions import Truth, collect, direction
from advnas.testing.enumeration import every_architecture
from credit_structures import STRUCTURES, Parent
from kept import read, read_all

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Run = dict[str, Any]

STRATEGIES = (
    "contrast",
    "exact_contrast",
    "proxyless",
    "advantage",
    "gdas",
    "exact_advantage",
    "reinforce",
    "parsec",
)
FIGURES = ("mean", "clipped", "step")
_LOSSES = {"mean loss": "mean_loss", "best loss": "best_loss"}
_LABELS = {
    "transformer": "trans-\nformer",
    "nasbench201": "NAS-\nBench-\n201",
    "nasbench_macro": "NAS-\nBench-\nMacro",
    "recurrent_normalised": "recurrent,\nnorm.",
}
_TITLES = {"mean": "mean of all steps", "step": "one step"}


@dataclass(frozen=True)
class Size:
    """How much is measured.

    steps, warmup: of every strategy, and how many before them. enumerated: the largest space of which all
    architectures are run. sampled: how many of a larger one.
    """

    steps: int = 500
    warmup: int = 100
    enumerated: int = 5000
    sampled: int = 1500


_QUICK = Size(steps=30, warmup=5, enumerated=30, sampled=30)


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    if options.pages is not None:
        write_pages(stored(options.folder), options.pages)
        return
    runs = list(measure_all(options))
    if options.json:
        print(json.dumps(runs, indent=1))
    else:
        show(runs)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--structures", nargs="+", choices=[*STRUCTURES], help="all; with --quick, those without data"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--folder", type=Path, help="of the results; what is there already is not measured again")
    parser.add_argument(
        "--pages", type=Path, metavar="FOLDER", help="measure nothing; write the tables and the figure of the docs"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="seconds: one epoch, few steps, one seed; no results")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def measure_all(options: argparse.Namespace) -> Iterator[Run]:
    """Measure what the folder does not have yet."""
    size, seeds = (_QUICK, options.seeds[:1]) if options.quick else (Size(), options.seeds)
    names = options.structures or [n for n, s in STRUCTURES.items() if not (options.quick and s.downloads)]
    for seed in seeds:
        for name in names:
            for epochs in (1,) if options.quick else STRUCTURES[name].ages:
                path = options.folder and options.folder / f"{name}-{epochs}-{seed}.json"
                yield from [known(path, size) or measure(name, epochs, seed, size, path)]


def known(path: Path | None, size: Size) -> Run | None:
    """Read a result of this size, if there is one."""
    if path is None or not path.exists():
        return None
    run = read(path)
    if run["size"] != asdict(size):
        raise ValueError(f"{path} was measured with {run['size']}, not with {asdict(size)}. Name another folder.")
    return run


def stored(folder: Path) -> list[Run]:
    """Read all results of a folder."""
    return read_all(folder.glob("*.json"))


def measure(name: str, epochs: int, seed: int, size: Size, path: Path | None) -> Run:
    """Measure all strategies on one parent, and write the result where it is to be kept."""
    started = time.perf_counter()
    parent = STRUCTURES[name].make(epochs, seed).trained()
    chosen, exact = architectures(parent, seed, size)
    rewards = torch.stack([reward(parent, one, seed_of(seed, number)) for number, one in enumerate(chosen)])
    truth = Truth.of(chosen, rewards, exact=exact, seed=seed)
    print(f"{name}, {epochs} epochs, seed {seed}: truth known", file=sys.stderr)
    run = {
        "structure": name,
        "epochs": epochs,
        "seed": seed,
        "size": asdict(size),
        "decisions": {d.name: list(d.operations) for d in parent.search.space.decisions},
        "architectures": len(chosen),
        "exact": exact,
        "split_half": truth.split_half,
        "mean_loss": -rewards.mean().item(),
        "best_loss": -rewards.max().item(),
        "gradient": truth.gradient.tolist(),
        "strategies": {one: compare(one, parent, truth, rewards, seed, size) for one in STRATEGIES},
        "seconds": round(time.perf_counter() - started, 1),
        **provenance(),
    }
    if path is not None:
        write_atomically(path, json.dumps(run, indent=1))
    return run


def architectures(parent: Parent, seed: int, size: Size) -> tuple[Tensor, bool]:
    """Return all architectures or a uniform sample, one-hot, and whether these are all."""
    search = parent.search
    if search.space.size <= size.enumerated:
        return every_architecture(search.space.sizes).float(), True
    random = generator(seed, size.sampled)
    return torch.stack([search.distribution.sample(random) for _ in range(size.sampled)]), False


def reward(parent: Parent, chosen: Tensor, seed: int) -> Tensor:
    """Run one architecture on the fixed minibatches, in training mode as a step does; the seed is for dropout."""
    search, draw = parent.search, Draw.bare(chosen)
    with torch.no_grad(), search.weights.still(draw), search.space.running(draw), seeded(seed):
        return -torch.stack([loss_of(search.model) for loss_of in parent.judged]).mean()


def compare(name: str, parent: Parent, truth: Truth, rewards: Tensor, seed: int, size: Size) -> Run:
    """Take the steps of one strategy and compare them with the truth."""
    strategy = strategies.for_task(name, examples=parent.examples)
    started = time.perf_counter()
    estimates = collect(
        parent.search.model, strategy, parent.judged, steps=size.steps, warmup=size.warmup, seed=seed
    )
    seconds = (time.perf_counter() - started) / (size.steps + size.warmup)
    best = estimates.mean(0).masked_fill(~parent.search.distribution.logits.isfinite(), -torch.inf)
    answer = reward(parent, torch.nn.functional.one_hot(best.argmax(-1), best.shape[-1]).float(), seed_of(seed))
    return {
        **{figure: list(getattr(direction(estimates, truth, seed=seed), figure)) for figure in FIGURES},
        "better_than": 100 * (rewards < answer).float().mean().item(),
        "answer_loss": -answer.item(),
        "seconds_per_step": round(seconds, 5),
    }


def show(runs: Sequence[Run]) -> None:
    for run in runs:
        split = "exact" if run["exact"] else f"split-half {run['split_half']:.2f}"
        print(
            f"{run['structure']}, {run['epochs']} epochs, seed {run['seed']}: truth of {run['architectures']} "
            f"architectures ({split}), mean loss {run['mean_loss']:.3f}, {run['seconds']:.0f} s"
        )
        for name, own in run["strategies"].items():
            cells = (f"{figure} {own[figure][0]:+.2f} ± {own[figure][1]:.2f}" for figure in FIGURES)
            print(f"  {name:16s}", "   ".join(cells), f"  better than {own['better_than']:.0f} %")


# The page


def write_pages(runs: Sequence[Run], folder: Path) -> None:
    """Write what docs/results/credit.md shows: its tables, its figure, and all results."""
    tables = {figure: cosine_table(runs, figure) for figure in FIGURES}
    tables |= {"parents": parents_table(runs), "answers": answers_table(runs), "price": price_table(runs)}
    for name, table in tables.items():
        write_atomically(folder / f"credit_{name}.json", json.dumps(table, indent=1) + "\n")
    write_atomically(folder / "credit" / "runs.json", json.dumps(list(runs)) + "\n")
    draw(runs, folder / "credit" / "directions.png")


def groups(runs: Sequence[Run]) -> dict[tuple[str, int], list[Run]]:
    """Sort the runs by network and age; the seeds of each."""
    found: dict[tuple[str, int], list[Run]] = {}
    for name, structure in STRUCTURES.items():
        for epochs in structure.ages:
            own = [run for run in runs if (run["structure"], run["epochs"]) == (name, epochs)]
            if own:
                found[name, epochs] = own
    return found


def pooled(runs: Sequence[Run], strategy: str, figure: str) -> dict[str, float] | None:
    """Average a figure over the seeds; with the standard error of that average as far as sampling goes."""
    values = [run["strategies"][strategy][figure] for run in runs if strategy in run["strategies"]]
    if not values:
        return None
    error = math.sqrt(sum(error**2 for _, error in values)) / len(values)
    return {"mean": statistics.fmean(value for value, _ in values), "std": error}


def cosine_table(runs: Sequence[Run], figure: str) -> dict[str, Any]:
    names = measured(runs)
    rows = [{name: pooled(own, name, figure) for name in names} for own in groups(runs).values()]
    return laid_out(f"Cosine with the true gradient: {figure}", runs, rows, dict.fromkeys(names, "+.2f"))


def price_table(runs: Sequence[Run]) -> dict[str, Any]:
    """What one step says at equal price: the squared cosine of a step, which steps add up to, per forward pass."""
    names = measured(runs)
    rows = [{name: per_pass(own, name) for name in names} for own in groups(runs).values()]
    title = "Squared cosine of one step per 1,000 forward passes"
    return laid_out(title, runs, rows, dict.fromkeys(names, ".1f"))


def per_pass(runs: Sequence[Run], strategy: str) -> float | None:
    found = pooled(runs, strategy, "step")
    passes = strategies.get(strategy).architecture_passes([len(own) for own in runs[0]["decisions"].values()])
    return None if found is None else 1000 * max(found["mean"], 0.0) ** 2 / passes


def answers_table(runs: Sequence[Run]) -> dict[str, Any]:
    names = measured(runs)
    rows = [{name: better_than(own, name) for name in names} for own in groups(runs).values()]
    title = "Architectures worse than the argmax of the mean estimate [%]"
    return laid_out(title, runs, rows, dict.fromkeys(names, ".0f"))


def measured(runs: Sequence[Run]) -> list[str]:
    """The strategies that any of the runs has; some came later than others."""
    return [name for name in STRATEGIES if any(name in run["strategies"] for run in runs)]


def better_than(runs: Sequence[Run], strategy: str) -> float | None:
    values = [run["strategies"][strategy]["better_than"] for run in runs if strategy in run["strategies"]]
    return statistics.fmean(values) if values else None


def parents_table(runs: Sequence[Run]) -> dict[str, Any]:
    forms = {
        "seeds": None,
        "decisions": "d",
        "truth": None,
        "split-half": ".2f",
        "mean loss": ".2f",
        "best loss": ".2f",
    }
    rows = [
        {
            "seeds": ", ".join(str(run["seed"]) for run in own),
            "decisions": len(own[0]["decisions"]),
            "truth": f"{'all' if own[0]['exact'] else 'sample of'} {own[0]['architectures']:,}",
            "split-half": None if own[0]["exact"] else statistics.fmean(run["split_half"] for run in own),
            **{title: statistics.fmean(run[field] for run in own) for title, field in _LOSSES.items()},
        }
        for own in groups(runs).values()
    ]
    return laid_out("The parents", runs, rows, forms)


def laid_out(
    title: str, runs: Sequence[Run], rows: Sequence[Run], forms: Mapping[str, str | None]
) -> dict[str, Any]:
    """Put a table together as docs/make_tables.py reads it, one row per parent; forms: of the columns."""
    parents = [
        {"parent": STRUCTURES[name].title, "epochs": epochs} | row
        for (name, epochs), row in zip(groups(runs), rows, strict=True)
    ]
    columns = [
        {"title": name, "field": name} | ({} if form is None else {"format": form})
        for name, form in ({"parent": None, "epochs": "d"} | dict(forms)).items()
    ]
    return {"title": title, "source": source(runs), "columns": columns, "rows": parents}


def source(runs: Sequence[Run]) -> dict[str, str]:
    seeds, commits = sorted({run["seed"] for run in runs}), sorted({run["commit"] for run in runs})
    return {
        "command": "benchmarks/credit_direction.py --folder F",
        "seeds": ", ".join(map(str, seeds)),
        "commit" if len(commits) == 1 else "commits": ", ".join(commits),
        "machine": "; ".join(sorted({f"{run['machine']}, {run['versions']}" for run in runs})),
    }


def draw(runs: Sequence[Run], path: Path) -> None:
    """Draw the cosine by structure and strategy: the mean of all steps above, one step below; both ages."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 7.5), layout="constrained")
    grid = figure.subplots(2, 2, sharex="col", sharey="row")
    names = [name for name in STRUCTURES if any(run["structure"] == name for run in runs)]
    for row, kind in enumerate(_TITLES):
        for column, age in enumerate(("few epochs", "many epochs")):
            draw_panel(grid[row][column], runs, names, kind, column)
            grid[row][column].set_title(f"{_TITLES[kind]}, parent trained for {age}", fontsize=10)
        grid[row][0].set_ylabel("cosine with the true gradient")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(STRATEGIES), frameon=False, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def draw_panel(axes: "Axes", runs: Sequence[Run], names: Sequence[str], kind: str, age: int) -> None:
    for number, strategy in enumerate(STRATEGIES):
        for place, name in enumerate(names):
            of_name = groups(runs).get((name, STRUCTURES[name].ages[age]), [])
            own = [run for run in of_name if strategy in run["strategies"]]
            if own:
                at = place + 0.11 * (number - (len(STRATEGIES) - 1) / 2)
                draw_point(axes, at, own, strategy, kind)
    axes.axhline(0, color="#333333", lw=0.8)
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.set_xticks(range(len(names)), [_LABELS.get(name, name) for name in names], fontsize=8)
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def draw_point(axes: "Axes", at: float, runs: Sequence[Run], strategy: str, kind: str) -> None:
    """A small dot per seed, a large one at their mean with its standard error."""
    color, mean = look(strategy).color, pooled(runs, strategy, kind)
    assert mean is not None
    values = [run["strategies"][strategy][kind][0] for run in runs]
    axes.plot([at] * len(values), values, "o", color=color, alpha=0.35, markersize=3, mew=0)
    known = axes.get_legend_handles_labels()[1]
    label = None if strategy in known else strategy
    axes.errorbar(at, mean["mean"], mean["std"], fmt="o", color=color, markersize=5, lw=1.2, capsize=2, label=label)


if __name__ == "__main__":
    main()
