"""From theta to a network on NAS-Bench-Macro: ways to learn theta at equal cost, and ways to take the answer.

Every seed has one warm-up, that of `advnas experiment macro --preset laptop`. From there all variants take the same
weight steps, and spend the same number of forward passes on theta (a pass with gates counts 2.5, a rival 0.9), so
that cheaper steps are taken more often:

    contrast         the default: one rival
    contrast_all     all rivals of the drawn operation
    advantage        the paper's
    reinforce        one draw per minibatch and a moving baseline
    leave_one_out    REINFORCE with two draws on one minibatch, each the baseline of the other
    asng             two draws on one minibatch, and the adaptive natural gradient step of ASNG
    ranked_random    no theta: as many passes for ranking uniform architectures

Then the answer is taken in several ways, each judged by the benchmark's table of real trainings:

    argmax           the most likely architecture; costs nothing
    process best     the drawn one with the lowest loss on its minibatch; costs nothing
    refined          coordinate ascent from the argmax by the shared weights (`advnas.answers.refine`)
    finalist         the best by the shared weights of the argmax, the process best, the refined one and 16 draws
    uniform          the best by the shared weights of as many uniform draws as refining has evaluated

One file per (variant, seed) is kept in the folder, so that the benchmark resumes where it was stopped.

    .venv/bin/python benchmarks/answer_stages.py --folder F --quick
    .venv/bin/python benchmarks/answer_stages.py --folder F --json
    .venv/bin/python benchmarks/answer_stages.py --folder F --pages docs/results
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from advnas import Architecture, Draw, Search, strategies, tables
from advnas.answers.ranking import draw_different, propose
from advnas.answers.refinement import refine_by
from advnas.answers.shared_loss import SharedLoss
from advnas.answers.uniform import Halving, rank_uniform
from advnas.distribution import Distribution
from advnas.paper import macro
from advnas.randomness import generator
from advnas.records.checkpoints import load_state
from advnas.records.files import write_atomically
from advnas.records.provenance import provenance
from advnas.reports.pairs import difference
from advnas.search import Minibatches
from advnas.strategies import Feedback, Phase, State, Strategy
from advnas.studies.run import run_warmup, warmup_file
from advnas.tasks.data_folder import data_folder
from kept import kept, read_all

Run = dict[str, Any]

SEEDS = tuple(range(10))
PASSES_PER_TURN = 3.4
"""What `contrast` spends on theta per turn, in forward passes of one minibatch."""
STAGES = ("argmax", "process best", "refined", "finalist", "uniform")
JUDGING, DRAWS = 16, 16  # validation minibatches of a judgement; draws among the finalists


@dataclass(frozen=True, kw_only=True)
class LeaveOneOut(Strategy):
    """REINFORCE with two draws on one minibatch: 1/2 (r_1 - r_2)(grad log p(a_1) - grad log p(a_2))."""

    def draw(
        self, logits: Tensor, state: State, phase: Phase, progress: float | None, generator: torch.Generator
    ) -> Draw:
        """a_1 ~ p_theta; no gates, no graph."""
        return Draw.bare(Distribution(logits.detach()).sample(generator))

    def gradient(self, feedback: Feedback, draw: Draw, logits: Tensor, state: State) -> tuple[Tensor | None, State]:
        """Run a second draw on the same minibatch."""
        pair, losses = two_draws(feedback, draw, logits)
        return 0.5 * (losses[1] - losses[0]) * (pair[0] - pair[1]), state

    def architecture_passes(self, sizes: Sequence[int]) -> float:
        """Two forward passes."""
        return 2.0


def two_draws(feedback: Feedback, draw: Draw, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Draw once more: both draws [2, decisions, candidates] and their losses [2]."""
    first = draw.weights.detach()
    second = Distribution(logits.detach()).sample(torch.default_generator)  # seeded by the step
    other = feedback.probe(Draw.bare(second[None]))
    return torch.stack([first, second]), torch.cat([feedback.loss[None], other])


@dataclass(frozen=True, kw_only=True)
class Asng(Strategy):
    """The adaptive stochastic natural gradient on the probabilities mu, two draws with utilities +1 and -1.

        G = mean of u_k (a_k - mu)                          natural gradient
        mu <- mu + delta G / |G|_F                          |G|_F^2 = sum G^2 / mu
        beta = delta / sqrt(n),  s <- (1 - beta) s + sqrt(beta (2 - beta)) G / sqrt(mu) / |G|_F
        gamma <- (1 - beta)^2 gamma + beta (2 - beta),  delta <- delta exp(beta (|s|^2 / alpha - gamma))
        mu_ij >= 1 / (n (K_i - 1))                          n decisions, K_i operations

    Akimoto et al.: Adaptive stochastic natural gradient method for one-shot neural architecture search, ICML 2019.
    The optimiser of theta is not used: `project` puts theta where the update of mu leads.
    """

    alpha: float = 1.5
    independent_draws: ClassVar[bool] = False

    def init(self, logits: Tensor, zeros: Tensor, generator: torch.Generator) -> State:
        """Begin with a step of 1 and no memory."""
        return {
            "delta": torch.ones(()),
            "gamma": torch.zeros(()),
            "s": torch.zeros_like(logits),
            "mu": Distribution(logits).probabilities.detach().clone(),
        }

    def draw(
        self, logits: Tensor, state: State, phase: Phase, progress: float | None, generator: torch.Generator
    ) -> Draw:
        """a_1 ~ p_theta; no gates, no graph."""
        return Draw.bare(Distribution(logits.detach()).sample(generator))

    def gradient(self, feedback: Feedback, draw: Draw, logits: Tensor, state: State) -> tuple[Tensor | None, State]:
        """Update mu, kept in the state; the gradient only says that there is something to do."""
        pair, losses = two_draws(feedback, draw, logits)
        mu = Distribution(logits.detach()).probabilities
        natural = 0.5 * torch.sign(losses[1] - losses[0]) * (pair[0] - pair[1])
        root = mu.clamp_min(1e-12).sqrt()
        norm = (natural / root).norm()
        if norm == 0:
            return None, state
        delta, free = state["delta"], logits.isfinite().sum() - len(logits)
        beta = (delta / free.sqrt()).clamp_max(1.0)
        s = (1 - beta) * state["s"] + (beta * (2 - beta)).sqrt() * natural / root / norm
        gamma = (1 - beta) ** 2 * state["gamma"] + beta * (2 - beta)
        grown = delta * torch.exp(beta * (s.square().sum() / self.alpha - gamma))
        moved = (mu + delta * natural / norm).maximum(least_probability(logits)) * logits.isfinite()
        following = {"delta": grown, "gamma": gamma, "s": s, "mu": moved / moved.sum(-1, keepdim=True)}
        return natural, following

    def project(self, before: Tensor, after: Tensor, draw: Draw, state: State) -> Tensor:
        """theta = log mu."""
        return state["mu"].log()

    def architecture_passes(self, sizes: Sequence[int]) -> float:
        """Two forward passes."""
        return 2.0


def least_probability(logits: Tensor) -> Tensor:
    """Return what ASNG keeps for every operation: 1 / (n (K_i - 1)), [decisions, 1]."""
    return 1 / (len(logits) * (logits.isfinite().sum(-1, keepdim=True) - 1))


VARIANTS: dict[str, Callable[[], Strategy]] = {
    "contrast": partial(strategies.get, "contrast"),
    "ranked_random": partial(strategies.get, "ranked_random"),
    "reinforce": partial(strategies.get, "reinforce"),
    "leave_one_out": LeaveOneOut,
    "contrast_all": partial(strategies.get, "contrast", rivals=None),
    "asng": Asng,
    "advantage": partial(strategies.get, "advantage"),
}


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
    parser.add_argument("--variants", nargs="+", choices=[*VARIANTS], default=[*VARIANTS])
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--folder", type=Path, required=True, help="of the results; outside of the checkout")
    parser.add_argument(
        "--pages", type=Path, metavar="FOLDER", help="measure nothing; write the tables of the docs"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="the preset quick, one seed; no results")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def measure_all(options: argparse.Namespace) -> Iterator[Run]:
    """Measure what the folder does not have yet."""
    preset, seeds = ("quick", options.seeds[:1]) if options.quick else ("laptop", options.seeds)
    study = macro.Macro(macro.PRESETS[preset], data_folder(None))
    folder = options.folder / preset
    for seed in seeds:
        for variant in options.variants:
            yield kept(folder / f"{variant}-{seed}.json", partial(measure, study, variant, seed, folder))


def stored(folder: Path) -> list[Run]:
    """Read all results of a folder."""
    return [run for name in VARIANTS for run in read_all((folder / "laptop").glob(f"{name}-[0-9]*.json"))]


def measure(study: macro.Macro, variant: str, seed: int, folder: Path) -> Run:
    """Search from the warm-up on, and take the answer in every way."""
    run_warmup(study, seed, folder)
    started = time.perf_counter()
    search, data = study.make_search(VARIANTS[variant](), seed), study.make_data(seed)
    warm = load_state(warmup_file(folder, seed))
    search.load_weights(warm["weights"])
    data.restore(warm["data"])
    spent = advance(search, data, study.length.turns)
    answers = ranked(search, data, study) if variant == "ranked_random" else stages(search, data)
    known = tables.get("nasbench_macro")
    table = known.load(known.find(study.data_folder))
    return {
        "variant": variant,
        "seed": seed,
        "architecture_steps": search.architecture_steps,
        "passes": spent,
        "entropy": search.distribution.entropy().mean().item(),
        "answers": {
            name: {"accuracy": table.accuracy(one), "passes": passes, "architecture": dict(one)}
            for name, (one, passes) in answers.items()
        },
        "seconds": round(time.perf_counter() - started, 1),
        **provenance(),
    }


def advance(search: Search, data: Minibatches, turns: int) -> float:
    """Take the turns that are left; spend the same on theta in each. Return the passes spent on theta."""
    first, cost = search.weight_steps, search.strategy.architecture_passes(search.space.sizes)
    total = int(PASSES_PER_TURN * (turns - first) / cost) if search.strategy.takes_architecture_steps else 0
    while search.weight_steps < turns:
        search.progress.set_length(turns, first)  # what the rate of the weights depends on
        search.weight_step(data.losses(search)[0])
        due = total * (search.weight_steps - first) // (turns - first)
        search.progress.set_length(first + max(total, 1), first)  # what theta's rate depends on
        while search.architecture_steps < due:
            search.architecture_step(data.losses(search)[1]())
    return search.architecture_steps * cost


def stages(search: Search, data: Minibatches) -> dict[str, tuple[Architecture, int]]:
    """Take the answer in every way; each with the forward passes it took."""
    judged = judge(search, data)
    refined = refine_by(judged, search)
    best = search.process_best
    found = {"argmax": (search.argmax(), 0), "refined": (refined.architecture, refined.passes)}
    if best is not None:
        found["process best"] = best.architecture, 0
    proposals = [*propose(search, DRAWS, generator(search.seed, 0)), refined.architecture]
    found["finalist"] = min(proposals, key=judged.mean), judged.passes
    other = judge(search, data)
    uniform = Distribution(torch.zeros_like(search.distribution.logits))
    drawn = draw_different(uniform, refined.passes // JUDGING, generator(search.seed, 1))
    found["uniform"] = min((search.space.architecture(one) for one in drawn), key=other.mean), other.passes
    return found


def judge(search: Search, data: Minibatches) -> SharedLoss:
    losses = list(data.validation_pass(JUDGING)[1])
    return SharedLoss(search, losses, lambda model, loss_of: loss_of(model))


def ranked(search: Search, data: Minibatches, study: macro.Macro) -> dict[str, tuple[Architecture, int]]:
    """Spend what the others spend on theta on ranking uniform architectures."""
    length = study.length
    minibatches, losses = data.validation_pass(length.per_epoch)
    passes = PASSES_PER_TURN * (length.turns - length.warmup_turns)
    plan = Halving.costing(passes, search.space.size, minibatches)
    return {"ranked": (rank_uniform(search, losses, plan)[0].architecture, plan.passes)}


def told(run: Run) -> str:
    answers = ", ".join(f"{name} {own['accuracy']:.2f} ({own['passes']})" for name, own in run["answers"].items())
    return f"{run['variant']}, seed {run['seed']}: entropy {run['entropy']:.2f}, {answers}, {run['seconds']:.0f} s"


# The page


def write_pages(runs: Sequence[Run], folder: Path) -> None:
    """Write the tables of docs/results/macro.md, and all results."""
    write_atomically(folder / "macro_stages.json", json.dumps(stage_table(runs), indent=1) + "\n")
    write_atomically(folder / "macro_stage_pairs.json", json.dumps(pair_table(runs), indent=1) + "\n")
    write_atomically(folder / "macro" / "stages.json", json.dumps(list(runs)) + "\n")


def accuracies(runs: Sequence[Run], variant: str, stage: str) -> dict[int, float]:
    """Accuracy by seed."""
    own = (run for run in runs if run["variant"] == variant and stage in run["answers"])
    return {run["seed"]: run["answers"][stage]["accuracy"] for run in own}


def stage_table(runs: Sequence[Run]) -> Run:
    """A row per variant, a column per stage."""
    rows = []
    for variant in VARIANTS:
        own = [run for run in runs if run["variant"] == variant]
        if own:
            shown = {name: list(accuracies(runs, variant, name).values()) or None for name in (*STAGES, "ranked")}
            extra = [run["answers"]["refined"]["passes"] for run in own if "refined" in run["answers"]]
            rows.append(
                {"variant": variant, "entropy": [run["entropy"] for run in own], "passes": own[0]["passes"]}
                | shown
                | {"refining": extra or None}
            )
    columns = [
        {"title": "theta", "field": "variant"},
        {"title": "passes for theta", "field": "passes", "format": ",.0f"},
        {"title": "entropy at the end", "field": "entropy", "format": ".2f"},
        *({"title": f"{name} [%]", "field": name, "format": ".2f"} for name in (*STAGES, "ranked")),
        {"title": "passes for refining", "field": "refining", "format": ",.0f"},
    ]
    return {"source": source(runs), "columns": columns, "rows": rows}


def pair_table(runs: Sequence[Run]) -> Run:
    """Differences by seed: variants against contrast and ranked random search, stages against the argmax."""
    rows = []
    for variant in VARIANTS:
        for stage, other, its in opponents(variant):
            ours, theirs = accuracies(runs, variant, stage), accuracies(runs, other, its)
            seeds = sorted(ours.keys() & theirs.keys())
            if len(seeds) > 1:
                rows.append(pair_row((variant, stage), (other, its), [ours[one] - theirs[one] for one in seeds]))
    titles = ("answer", "against", "seeds", "mean difference", "95 % interval", "Wilcoxon p", "significant")
    columns = [{"title": title, "field": title} for title in titles]
    return {"source": source(runs), "columns": columns, "rows": rows}


def opponents(variant: str) -> Iterator[tuple[str, str, str]]:
    """A stage of this variant, and what it is compared with."""
    if variant == "ranked_random":
        return
    yield "argmax", "ranked_random", "ranked"
    if variant != "contrast":
        yield "argmax", "contrast", "argmax"
    for stage in ("process best", "refined", "finalist"):
        yield stage, variant, "argmax"


def pair_row(ours: tuple[str, str], theirs: tuple[str, str], gains: Sequence[float]) -> Mapping[str, Any]:
    found = difference(gains)
    return {
        "answer": ", ".join(ours),
        "against": ", ".join(theirs),
        "seeds": str(found.pairs),
        "mean difference": f"{found.mean:+.2f}",
        "95 % interval": f"{found.low:+.2f} to {found.high:+.2f}",
        "Wilcoxon p": f"{found.p:.2g}",
        "significant": "yes" if found.significant else "no",
    }


def source(runs: Sequence[Run]) -> dict[str, str]:
    seeds, commits = sorted({run["seed"] for run in runs}), sorted({run["commit"] for run in runs})
    return {
        "command": "benchmarks/answer_stages.py --folder F",
        "seeds": ", ".join(map(str, seeds)),
        "commit" if len(commits) == 1 else "commits": ", ".join(commits),
        "machine": "; ".join(sorted({f"{run['machine']}, {run['versions']}" for run in runs})),
    }


if __name__ == "__main__":
    main()
