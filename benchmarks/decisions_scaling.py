"""Where does learning pay over ranking random architectures? The same kind of network with 4 to 64 decisions.

Digits of 8 x 8 pixels, networks of width 8. A decision chooses a convolution 3 x 3 or 1 x 1, a depthwise
convolution 3 x 3, an average pooling 3 x 3 (all with BatchNorm), or nothing, and stands

    chain       in series, without a skip: x -> choice(x); up to 16 decisions, deeper ones do not train
    blocks      in series, with the skip inside the candidates: x -> choice(x), each candidate is x + f(x)
    residual    in the branch: x -> x + choice(x)

Blocks and residual are the same network with the same weights: only what is called the operation differs. To
`advantage` and `gdas` that makes a difference. The others see losses alone, or differences between operations, in
which the skip cancels: their searches are the same in both, up to rounding, and are run once.

Every seed has one parent, trained by uniform draws. From there theta learns

    frozen      while the weights stay as they are
    training    while the weights go on training: theta's steps are spread evenly over further weight steps

All strategies take the same weight steps and spend the same on theta, counted in forward passes of one minibatch
(`UNITS`). Ranked random search (`random`) trains by uniform draws and spends the same on the whole validation data
for each of its uniform draws. The answer is the most likely architecture, for `random` the best ranked. What is
reported is its loss on the test data with the weights of its search, divided by the mean loss of random
architectures with the weights that were trained by uniform draws alone.

Every result is a file in --folder, so that a run that was stopped goes on where it was, and several processes may
share a folder if they work on different parts:

    .venv/bin/python benchmarks/decisions_scaling.py --folder F --quick
    .venv/bin/python benchmarks/decisions_scaling.py --folder F --sizes 4 8 16 --seeds 0 1 2
    .venv/bin/python benchmarks/decisions_scaling.py --folder F --json
    .venv/bin/python benchmarks/decisions_scaling.py --folder F --docs docs/results
    .venv/bin/python benchmarks/decisions_scaling.py --folder G --choose-rates
"""

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from advnas import Architecture, Choice, Search, Zero
from advnas.answers import rank_architectures
from advnas.modes import batch_statistics
from advnas.randomness import seed_of, seeded
from advnas.records.files import write_atomically
from advnas.records.provenance import provenance
from advnas.reports.curves import look
from advnas.retrain import retrain
from advnas.search.data import Replay
from advnas.task import mean_over
from advnas.tasks import digits
from kept import kept, read_all

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Result = dict[str, Any]
Table = dict[str, Any]
Numbers = dict[tuple[str, int], dict[str, list[float]]]  # (structure, size) -> strategy -> one number per seed
Losses = Iterator[Callable[[nn.Module], Tensor]]

SIZES = {"chain": (4, 8, 16), "blocks": (4, 8, 16, 32, 64), "residual": (4, 8, 16, 32, 64)}
REGIMES = ("frozen", "training")
SEEDS = tuple(range(6))
# What an architecture step costs, in forward passes of one minibatch. Measured beside it: `--json`, table units.
UNITS = {"contrast": 3.4, "advantage": 2.5, "reinforce": 1.0, "gdas": 2.5, "proxyless": 3.4}
STRATEGIES = (*UNITS, "random")
SEES_THE_SKIP = ("advantage", "gdas")  # for which blocks and residual branches differ

# Theta's rates were chosen by --choose-rates: of these, on seeds that are not reported, for frozen parents of one
# size, in the structure that suits all strategies.
CANDIDATE_RATES = (0.01, 0.03, 0.1, 0.3, 1.0)
RATE_SEEDS, RATE_SIZE, RATE_STRUCTURE = (900, 901, 902), 16, "residual"
RATES = {"contrast": 0.1, "advantage": 0.3, "reinforce": 0.1, "gdas": 1.0, "proxyless": 1.0}

# The convolution before the decisions; a chain, which forgets more, gets the whole 8 x 8 pixels.
STRIDES = {"chain": 1, "blocks": 2, "residual": 2}
_WIDTH, _BATCH = 8, 50
_TRAINING, _VALIDATION, _FURTHER, _RANKING, _JUDGING, _ALONE = range(6)  # purposes of seeds


@dataclass(frozen=True)
class Scale:
    """How much is computed.

    warmup: weight steps of the parent. turns: further weight steps where weights go on training. passes: what theta
    may cost, in forward passes. judged: random architectures whose mean the losses are divided by. alone_sizes,
    alone_epochs, alone_random: where answers are trained alone, for how long, and how many random architectures
    beside them.
    """

    warmup: int = 840
    turns: int = 210
    passes: int = 1000
    judged: int = 50
    alone_sizes: tuple[int, ...] = (4, 8)
    alone_epochs: int = 20
    alone_random: int = 4


QUICK = Scale(warmup=4, turns=4, passes=20, judged=4, alone_sizes=(4,), alone_epochs=1, alone_random=1)


class Part(NamedTuple):
    """One result."""

    structure: str
    size: int
    seed: int
    regime: str
    strategy: str

    @property
    def file(self) -> str:
        """Its name in the folder."""
        return f"{self.structure}-{self.size}-{self.seed}-{self.regime}-{self.strategy}.json"


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(1)
    scale = QUICK if options.quick else Scale()
    if options.choose_rates:
        write_atomically(options.folder / "rates.json", json.dumps(try_rates(scale)))
    elif not (options.json or options.docs):
        compute(parts(options), options.folder, scale)
        return
    tables = make_tables(options.folder)
    if options.docs:
        write_docs(tables, options.docs)
    if options.json:
        print(json.dumps(tables, indent=1))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="of the results; outside of the checkout")
    parser.add_argument("--structures", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--sizes", nargs="+", type=int, default=None)
    parser.add_argument("--seeds", nargs="+", type=int, default=None)
    parser.add_argument("--quick", action="store_true", help="a few steps, to see that everything runs")
    parser.add_argument(
        "--choose-rates", action="store_true", help="try theta's rates on seeds that are not reported"
    )
    parser.add_argument("--json", action="store_true", help="compute nothing, print the tables of the folder")
    parser.add_argument("--docs", type=Path, help="compute nothing, write tables and figure into this folder")
    return parser.parse_args()


def parts(options: argparse.Namespace) -> list[Part]:
    """List the results that were asked for, small networks first; if quick, 4 decisions and one seed."""
    sizes = options.sizes or ((4,) if options.quick else sorted(set().union(*SIZES.values())))
    seeds = options.seeds or (SEEDS[:1] if options.quick else SEEDS)
    places = itertools.product(sorted(sizes), options.structures, seeds, REGIMES, STRATEGIES)
    return [
        Part(structure, size, seed, regime, strategy)
        for size, structure, seed, regime, strategy in places
        if size in SIZES[structure] and (structure != "blocks" or strategy in SEES_THE_SKIP)
    ]


def compute(wanted: Sequence[Part], folder: Path, scale: Scale) -> None:
    """Compute and write what is not in the folder yet. One parent serves all results of a seed."""
    source = provenance()
    missing = [part for part in wanted if not (folder / part.file).exists()]
    for (structure, size, seed), group in itertools.groupby(missing, key=lambda part: part[:3]):
        bench = Bench(structure, size, seed, scale)
        for part in group:
            result = bench.result(part)
            write_atomically(folder / part.file, json.dumps({**part._asdict(), **result, "source": source}))
            print(f"{part.file}: loss {result['loss']:.4f}, {result['seconds']:.1f} s", file=sys.stderr, flush=True)
    for structure in sorted({part.structure for part in wanted}):
        kept(folder / f"units-{structure}.json", partial(measure_units, structure, scale))


class Bench:
    """A parent of one structure, size and seed, and the searches that start from it."""

    def __init__(self, structure: str, size: int, seed: int, scale: Scale) -> None:
        self.structure, self.size, self.seed, self.scale = structure, size, seed, scale
        self.task = digits.build(batch=_BATCH)
        with seeded(seed_of(seed, _RANKING)):
            self.ranking_batches = list(self.task.validation)
        parent = self.search("random", 0.0)
        losses = self.losses(self.task.training, _TRAINING)
        for _ in range(scale.warmup):
            parent.weight_step(next(losses))
        self.parent = parent.state()["weights"]

    def search(self, strategy: str, rate: float) -> Search:
        """Make a search whose weights are fresh."""
        return Search(
            make_network(self.structure, self.size, self.seed),
            strategy,
            steps=self.scale.warmup + self.scale.turns,
            warmup=self.scale.warmup,
            architecture_optimizer=partial(torch.optim.Adam, lr=rate, betas=(0.5, 0.999), fused=True),
            seed=self.seed,
        )

    def losses(self, batches: Any, purpose: int) -> Losses:
        """Yield the losses on minibatches, the same for all strategies of a seed."""
        for batch in Replay(batches, seed=seed_of(self.seed, purpose), name="digits"):
            yield self._loss_on(batch)

    def _loss_on(self, batch: Any) -> Callable[[nn.Module], Tensor]:
        return lambda model: self.task.loss(model, batch)

    def result(self, part: Part) -> Result:
        """Search, and judge the answer on the test data."""
        start = time.perf_counter()
        if part.strategy == "random":
            search, steps = self.ranked_random(part.regime)
            answer, own = self.best_ranked(search), self.judge_random(search)
        else:
            search, steps = self.learn(part.strategy, RATES[part.strategy], part.regime)
            answer, own = search.argmax(), {}
        seconds = time.perf_counter() - start
        return {
            "loss": self.test_loss(search.derive(answer)),
            "alone": self.train_alone(search, answer) if self.size in self.scale.alone_sizes else None,
            "entropy": search.distribution.entropy().mean().item(),
            "steps": steps,
            "seconds": seconds,
            "architecture": dict(answer),
            **own,
        }

    def learn(self, strategy: str, rate: float, regime: str) -> tuple[Search, int]:
        """Spend the passes on theta; return the search and how many steps theta took."""
        search, steps = self.search(strategy, rate), round(self.scale.passes / UNITS[strategy])
        search.load_weights(self.parent)
        self.advance(search, steps, self.scale.turns if regime == "training" else 0)
        return search, steps

    def ranked_random(self, regime: str) -> tuple[Search, int]:
        """Train on by uniform draws, if at all; return the search and how many architectures it may rank."""
        search = self.search("random", 0.0)
        search.load_weights(self.parent)
        self.advance(search, 0, self.scale.turns if regime == "training" else 0)
        return search, self.scale.passes // len(self.ranking_batches)

    def advance(self, search: Search, steps: int, turns: int) -> None:
        """Take theta's steps, spread evenly over the turns of the weights."""
        warmup = self.scale.warmup
        training, validation = (
            self.losses(self.task.training, _FURTHER),
            self.losses(self.task.validation, _VALIDATION),
        )
        for turn in range(1, turns + 1):
            search.progress.set_length(warmup + self.scale.turns, warmup)  # what the rate of the weights depends on
            search.weight_step(next(training))
            self._move_theta(search, steps * turn // turns, steps, validation)
        self._move_theta(search, steps, steps, validation)

    def _move_theta(self, search: Search, until: int, steps: int, losses: Losses) -> None:
        if steps:
            search.progress.set_length(self.scale.warmup + steps, self.scale.warmup)  # what theta's rate depends on
        while search.architecture_steps < until:
            search.architecture_step(next(losses))

    def best_ranked(self, search: Search) -> Architecture:
        """Rank uniform draws on the validation data. The mode of a uniform theta is no draw and does not count."""
        count = self.scale.passes // len(self.ranking_batches)
        seed = seed_of(self.seed, _RANKING)
        scored = rank_architectures(search, self.ranking_batches, self.task.loss, count=count + 1, seed=seed)
        return next(one.architecture for one in scored if one.source == "draw")

    def judge_random(self, search: Search) -> Result:
        """Judge other uniform draws on the test data, with the shared weights and alone."""
        assert self.task.test is not None
        seed, count = seed_of(self.seed, _JUDGING), self.scale.judged + 1
        scored = rank_architectures(search, self.task.test, self.task.loss, count=count, seed=seed)
        drawn = [one for one in scored if one.source == "draw"]
        found: Result = {"random_losses": [one.score for one in drawn]}
        if self.size in self.scale.alone_sizes:
            every = len(drawn) // self.scale.alone_random
            some = drawn[every // 2 :: every][
                : self.scale.alone_random
            ]  # the middles of equal parts of the ranking
            found["random_alone"] = [self.train_alone(search, one.architecture) for one in some]
        return found

    def train_alone(self, search: Search, architecture: Architecture) -> float:
        """Return the test loss of an architecture after training from scratch."""
        plain = search.derive(architecture, fresh=seed_of(self.seed, _ALONE))
        retrain(plain, self.task, epochs=self.scale.alone_epochs, seed=seed_of(self.seed, _ALONE))
        return self.test_loss(plain)

    def test_loss(self, module: nn.Module) -> float:
        """Return the loss on the test data; norms use the statistics of the batch, as in training."""
        assert self.task.test is not None
        with batch_statistics(module):
            return mean_over(module, self.task.test, self.task.loss)


def make_network(structure: str, decisions: int, seed: int) -> nn.Sequential:
    """Make a network with fresh weights."""
    with seeded(seed_of(seed, decisions)):
        layers = [LAYERS[structure]() for _ in range(decisions)]
        stem = [nn.Conv2d(1, _WIDTH, 3, stride=STRIDES[structure], padding=1, bias=False), norm()]
        head = [norm(), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * _WIDTH, 10)]
        return nn.Sequential(*stem, *layers, *head)


def norm() -> nn.BatchNorm2d:
    return nn.BatchNorm2d(_WIDTH, track_running_stats=False)


def branches() -> dict[str, nn.Module]:
    """The operations that have an output of their own."""
    return {
        "conv3": nn.Sequential(nn.ReLU(), nn.Conv2d(_WIDTH, _WIDTH, 3, padding=1, bias=False), norm()),
        "conv1": nn.Sequential(nn.ReLU(), nn.Conv2d(_WIDTH, _WIDTH, 1, bias=False), norm()),
        "depthwise": nn.Sequential(
            nn.ReLU(), nn.Conv2d(_WIDTH, _WIDTH, 3, padding=1, groups=_WIDTH, bias=False), norm()
        ),
        "pool": nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False), norm()),
    }


class Residual(nn.Module):
    """x + f(x)."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)  # type: ignore[no-any-return]


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "chain": lambda: Choice({**branches(), "none": nn.Identity()}),
    "blocks": lambda: Choice({**{name: Residual(one) for name, one in branches().items()}, "none": nn.Identity()}),
    "residual": lambda: Residual(Choice({**branches(), "none": Zero()})),
}


def try_rates(scale: Scale) -> Result:
    """Return the relative losses of every strategy's answers at every rate, one per seed."""
    source = provenance()
    found: dict[str, dict[str, list[float]]] = {name: {str(rate): [] for rate in CANDIDATE_RATES} for name in UNITS}
    for seed in RATE_SEEDS:
        bench = Bench(RATE_STRUCTURE, RATE_SIZE, seed, scale)
        mean = statistics.fmean(bench.judge_random(bench.ranked_random("frozen")[0])["random_losses"])
        for name, rate in itertools.product(UNITS, CANDIDATE_RATES):
            search, _ = bench.learn(name, rate, "frozen")
            found[name][str(rate)].append(bench.test_loss(search.derive()) / mean)
            print(
                f"{name}, rate {rate}, seed {seed}: {found[name][str(rate)][-1]:.3f}", file=sys.stderr, flush=True
            )
    return {"relative": found, "source": source}


def measure_units(structure: str, scale: Scale) -> Result:
    """Measure what the steps cost as multiples of a forward pass, interleaved, with uniform theta."""
    bench = Bench(structure, RATE_SIZE, SEEDS[0], QUICK)
    uniform, searches = bench.search("random", 0.0), {name: bench.search(name, 0.0) for name in UNITS}
    losses = bench.losses(bench.task.validation, _VALIDATION)
    seconds: dict[str, list[float]] = {name: [] for name in ("forward pass", "weight step", *UNITS)}
    for _ in range(10 if scale is QUICK else 100):
        loss = next(losses)
        seconds["forward pass"].append(timed(partial(forward, uniform, loss)))
        seconds["weight step"].append(timed(partial(uniform.weight_step, loss)))
        for name, search in searches.items():
            seconds[name].append(timed(partial(search.architecture_step, loss)))
    one = statistics.median(seconds.pop("forward pass"))
    ratios = {name: statistics.median(own) / one for name, own in seconds.items()}
    return {"structure": structure, "ratios": ratios, "source": provenance()}


def forward(search: Search, loss_of: Callable[[nn.Module], Tensor]) -> None:
    draw = search.space.architecture(search.distribution.sample(torch.default_generator))
    with torch.no_grad(), search.space.running(draw):
        loss_of(search.model)


def timed(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def make_tables(folder: Path) -> dict[str, Table]:
    """Make the tables of docs/results, by the names of their files, of what the folder holds."""
    results, units, rates = (read_all(folder.glob(names)) for names in ("*-*-*-*-*.json", "units-*", "rates.json"))
    results += [{**one, "structure": "blocks"} for one in results if is_same_in_blocks(one)]
    tables: dict[str, Table] = {}
    if results:
        frozen, training = (relative_losses(results, regime) for regime in REGIMES)
        tables["decisions"] = loss_table(frozen)
        tables["decisions_training"] = loss_table(training)
        tables["decisions_paired"] = paired_table(frozen, training)
        tables["decisions_alone"] = loss_table(relative_alone(results, "frozen"))
        tables["decisions_alone_training"] = loss_table(relative_alone(results, "training"))
        for table in tables.values():
            table["source"] = source_of(results)
    if units:
        tables["decisions_units"] = unit_table(units)
    if rates:
        tables["decisions_rates"] = rate_table(rates[0])
    return tables


def is_same_in_blocks(result: Result) -> bool:
    return result["structure"] == "residual" and result["strategy"] not in SEES_THE_SKIP


def source_of(results: Sequence[Result], options: str = "") -> dict[str, str]:
    """Say where numbers come from. The command computes everything that is missing in the folder."""
    sources = [result["source"] for result in results]
    found = {"command": f"python benchmarks/decisions_scaling.py --folder F{options}"}
    if "seed" in results[0]:
        found["seeds"] = ", ".join(map(str, sorted({result["seed"] for result in results})))
    for name in ("commit", "machine"):
        found[name] = ", ".join(sorted({source[name] for source in sources}))
    return found


def relative_losses(results: Sequence[Result], regime: str) -> Numbers:
    """Divide the losses of the answers by the mean of random architectures; the mean itself is "mean"."""
    found: Numbers = {}
    for row in complete_rows(results, regime):
        mean = statistics.fmean(row["random"]["random_losses"])
        add(found, row, {"mean": mean, **{name: one["loss"] / mean for name, one in row.items()}})
    return found


def relative_alone(results: Sequence[Result], regime: str) -> Numbers:
    """The same after training alone."""
    found: Numbers = {}
    for row in complete_rows(results, regime):
        if "random_alone" in row["random"]:
            mean = statistics.fmean(row["random"]["random_alone"])
            add(found, row, {"mean": mean, **{name: one["alone"] / mean for name, one in row.items()}})
    return found


def complete_rows(results: Sequence[Result], regime: str) -> list[dict[str, Result]]:
    """The results of a seed by strategy, where all strategies are there; small networks first."""
    rows: dict[tuple[str, int, int], dict[str, Result]] = {}
    for result in results:
        if result["regime"] == regime:
            key = result["structure"], result["size"], result["seed"]
            rows.setdefault(key, {})[result["strategy"]] = result
    return [row for _, row in sorted(rows.items()) if len(row) == len(STRATEGIES)]


def add(found: Numbers, row: dict[str, Result], numbers: dict[str, float]) -> None:
    place = row["random"]["structure"], row["random"]["size"]
    for name, number in numbers.items():
        found.setdefault(place, {}).setdefault(name, []).append(number)


def loss_table(numbers: Numbers) -> Table:
    """A row per structure and size, a column per strategy."""
    columns = [*PLACE_COLUMNS, {"title": "mean of random", "field": "mean", "format": ".3f"}]
    columns += [{"title": TITLES.get(name, name), "field": name, "format": ".2f"} for name in STRATEGIES]
    rows = [{"structure": place[0], "decisions": place[1], **own} for place, own in numbers.items()]
    return {"columns": columns, "rows": rows}


def paired_table(frozen: Numbers, training: Numbers) -> Table:
    """In how many seeds a strategy is ahead of ranked random search, frozen / training."""
    rows = []
    for place in frozen:
        row: dict[str, Any] = {"structure": place[0], "decisions": place[1]}
        for name in UNITS:
            row[name] = " / ".join(wins(numbers.get(place, {}), name) for numbers in (frozen, training))
        rows.append(row)
    return {"columns": [*PLACE_COLUMNS, *({"title": name, "field": name} for name in UNITS)], "rows": rows}


def wins(numbers: dict[str, list[float]], name: str) -> str:
    pairs = list(zip(numbers.get(name, []), numbers.get("random", []), strict=True))
    return str(sum(own < random for own, random in pairs)) if pairs else "-"


def unit_table(units: Sequence[Result]) -> Table:
    """What steps cost as counted, and as measured."""
    columns = [{"title": "step", "field": "step"}, {"title": "counted as", "field": "counted", "format": ".1f"}]
    columns += [{"title": one["structure"], "field": one["structure"], "format": ".1f"} for one in units]
    rows = [
        {
            "step": name,
            "counted": UNITS.get(name),
            **{one["structure"]: one["ratios"][name] for one in units},
        }
        for name in units[0]["ratios"]
    ]
    return {"columns": columns, "rows": rows, "source": source_of(units)}


def rate_table(rates: Result) -> Table:
    """The relative losses that theta's rates were chosen by."""
    columns = [{"title": "strategy", "field": "strategy"}]
    columns += [{"title": str(rate), "field": str(rate), "format": ".2f"} for rate in CANDIDATE_RATES]
    columns += [{"title": "chosen", "field": "chosen", "format": "g"}]
    rows = [{"strategy": name, **own, "chosen": RATES[name]} for name, own in rates["relative"].items()]
    seeds = {"seeds": ", ".join(map(str, RATE_SEEDS))}
    return {"columns": columns, "rows": rows, "source": source_of([rates], " --choose-rates") | seeds}


PLACE_COLUMNS = [
    {"title": "structure", "field": "structure"},
    {"title": "decisions", "field": "decisions", "format": "d"},
]
TITLES = {"random": "ranked random"}


def write_docs(tables: dict[str, Table], folder: Path) -> None:
    """Write a file per table, and the figure."""
    for name, table in tables.items():
        write_atomically(folder / f"{name}.json", json.dumps(table, indent=1) + "\n")
    if "decisions" in tables:
        draw_figure(tables).savefig(folder / "decisions.png", dpi=150)


def draw_figure(tables: dict[str, Table]) -> "Figure":
    """A column per structure, a row per regime: relative loss over the number of decisions."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6.4), layout="constrained")
    grid = figure.subplots(len(REGIMES), len(SIZES), sharex="col", sharey="row", squeeze=False)
    for (regime, structure), axes in zip(itertools.product(REGIMES, SIZES), grid.flat, strict=True):
        table = tables["decisions" if regime == "frozen" else f"decisions_{regime}"]
        draw_panel(axes, [row for row in table["rows"] if row["structure"] == structure])
    for structure, axes in zip(SIZES, grid[0], strict=True):
        axes.set_title(PANELS[structure], fontsize=10)
    for axes in grid[-1]:
        axes.set_xlabel("decisions")
    for regime, axes in zip(REGIMES, grid[:, 0], strict=True):
        axes.set_ylabel(f"parent {PARENTS[regime]}\nloss of the answer / mean of random")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=9)
    return figure


PANELS = {
    "chain": "chain: no skip",
    "blocks": "blocks: skip inside the candidates",
    "residual": "residual: the branch is chosen",
}
PARENTS = {"frozen": "frozen", "training": "goes on training"}


def draw_panel(axes: "Axes", rows: Sequence[Result]) -> None:
    """Medians over the seeds as lines, lowest to highest as bands; both axes logarithmic."""
    from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

    sizes = [row["decisions"] for row in rows]
    axes.axhline(1, color="#333333", lw=0.8, ls=(0, (1, 3)), label="mean of random")
    for number, name in enumerate(STRATEGIES):
        color, line, width = look(name)
        lows, highs = ([edge(row[name]) for row in rows] for edge in (min, max))
        axes.fill_between(sizes, lows, highs, color=color, alpha=0.1, lw=0)
        middles = [statistics.median(row[name]) for row in rows]
        axes.plot(sizes, middles, line, color=color, lw=width, marker=MARKERS[number], label=TITLES.get(name, name))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes, list(map(str, sizes)))
    axes.yaxis.set_major_locator(FixedLocator(TICKS))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


MARKERS = "osD^vP"
TICKS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1, 1.5, 2, 3, 5, 10)


if __name__ == "__main__":
    main()
