"""A language model that chooses its mixers and widths: are its answers better than designs by hand?

Takes the folder of a search of examples/hybrid_language_model.py, and trains beside its answers, in the same way
and with the same seeds:

    designs by hand        those of benchmarks/hand_designs.py, as large as the limit allows
    contrast, re-ranked    the best, by the shared weights on the data of theta, of the argmax, the process best and
                           draws from theta within the limit

    cd examples
    advnas search hybrid_language_model:make_search --epochs 12 --seeds 6 --limit parameters=79k --folder F
    python ../benchmarks/language_model.py F
    python ../benchmarks/language_model.py F --pages ../docs/results

The last command writes the tables and the figure of docs/results/language_model.md.
"""

import argparse
import json
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from advnas import Architecture, Search, strategies
from advnas.answers import SharedLoss
from advnas.answers.ranking import draw_within
from advnas.randomness import generator
from advnas.records.files import write_atomically
from advnas.records.provenance import provenance
from advnas.reports.contents import Measure
from advnas.reports.pairs import compare
from advnas.reports.tables import PAIRS_HEADER, pair_rows
from advnas.search import Minibatches
from advnas.studies.own_network import OwnNetworkStudy, load_searched
from advnas.studies.run import read_results, run_folder
from hand_designs import designs_of, study_in, train
from kept import kept, read

Result = Mapping[str, Any]
Trained = Mapping[str, Mapping[int, Result]]
"""What was trained, by name and seed."""

SEARCHED, RERANKED, RANKED = "contrast", "contrast, re-ranked", "ranked_random"
PROPOSALS = 16  # architectures that are ranked again
MIXERS = {"attention": "A", "window": "W", "convolution": "C", "recurrence": "R", "none": "-"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the search")
    parser.add_argument("--pages", type=Path, metavar="FOLDER", help="write the tables and the figure of the docs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    trained = train_all(options.folder)
    for name, results in trained.items():
        values = [one["measures"][0]["value"] for one in results.values()]
        print(f"{name:36s} {statistics.fmean(values):.4f}", *(f"{value:.4f}" for value in values))
    if options.pages is not None:
        write_pages(options.folder, trained, options.pages)


def train_all(folder: Path) -> Trained:
    """The answers of the folder, and what is trained beside them; what was done before is read."""
    study, found = study_in(folder), read_results(folder)
    answers = {
        name: {run["seed"]: outcome(run) for run in found if run["strategy"] == name}
        for name in (SEARCHED, *strategies.baselines())
    }
    seeds = list(answers[SEARCHED])
    by_hand = {
        f"{name}, by hand": {seed: train(study, folder, seed, design) for seed in seeds}
        for name, design in designs_of(study).items()
    }
    reranked = {seed: rerank(study, folder, seed) for seed in seeds}
    return {SEARCHED: answers.pop(SEARCHED), RERANKED: reranked, **answers, **by_hand}


def outcome(run: Result) -> dict[str, Any]:
    """What retraining the answer of a run has shown."""
    return {**run["evaluation"], "passes": run["passes"], "provenance": run["provenance"]}


def rerank(study: OwnNetworkStudy, folder: Path, seed: int) -> dict[str, Any]:
    """Rank what a search proposes once more and train the best, or read what an earlier call has left."""
    where, run = folder / "reranked" / str(seed), run_folder(folder, SEARCHED, seed)

    def measure() -> dict[str, Any]:
        found = read(run / "result.json")
        search, data = study.begin(SEARCHED, seed)
        load_searched(run, search)
        search.theta.assign(logits_of(search, found["probabilities"]))
        judged = judge(study, search, data)
        best = min(proposals(search, found), key=judged.mean)
        known = outcome(found) if best == found["evaluation"]["architecture"] else study.retrain(seed, best, where)
        return {**known, "passes": found["passes"] + judged.passes, "provenance": provenance()}

    return kept(where / "result.json", measure)


def judge(study: OwnNetworkStudy, search: Search, data: Minibatches) -> SharedLoss:
    """The shared weights on one pass over the data of theta."""
    count, losses = data.validation_pass(study.length.per_epoch)
    return SharedLoss(search, list(islice(losses, count)), lambda model, loss_of: loss_of(model))


def logits_of(search: Search, probabilities: Mapping[str, Mapping[str, float]]) -> Tensor:
    """Theta of a search that is over: [decisions, candidates]."""
    rows = [torch.tensor(list(probabilities[one.name].values())) for one in search.space.decisions]
    return pad_sequence(rows, batch_first=True).log()


def proposals(search: Search, found: Result) -> list[Architecture]:
    """The argmax, the process best, and draws from theta within the limit."""
    known = map(Architecture, (found["argmax"], found["process_best"]["architecture"]))
    return list(dict.fromkeys([*known, *draw_within(search, PROPOSALS, generator(search.seed, 0))]))[:PROPOSALS]


def shared_bits(folder: Path, trained: Trained, seed: int) -> dict[str, Any]:
    """What shared weights, trained by uniform draws, say about all that was trained alone: bits by name."""

    def measure() -> dict[str, Any]:
        study, run = study_in(folder), run_folder(folder, RANKED, seed)
        search, data = study.begin(RANKED, seed)
        load_searched(run, search)
        judged = judge(study, search, data)
        bits = {name: judged.mean(results[seed]["architecture"]) for name, results in trained.items()}
        return {"bits": bits, "provenance": provenance()}

    return kept(folder / "shared" / f"{seed}.json", measure)


# The page


def write_pages(folder: Path, trained: Trained, pages: Path) -> None:
    """Write the tables and the figure of docs/results/language_model.md."""
    shared = [shared_bits(folder, trained, seed) for seed in trained[SEARCHED]]
    results = [one for by_seed in trained.values() for one in by_seed.values()]
    source = source_of(folder, list(trained[SEARCHED]), [one["provenance"] for one in [*results, *shared]])
    limit = study_in(folder).settings.limits["parameters"]
    tables = {
        "language_model": results_table(trained, [one["bits"] for one in shared], limit),
        "language_model_pairs": pairs_table(trained),
        "language_model_answers": answers_table(trained),
    }
    for name, table in tables.items():
        write_atomically(pages / f"{name}.json", json.dumps({"source": source, **table}, indent=1) + "\n")
    draw(trained, pages / "language_model" / "designs.png")


def results_table(trained: Trained, shared: Sequence[Mapping[str, float]], limit: float) -> dict[str, Any]:
    """A row per strategy and design, one number per seed."""
    rows = [
        {
            "design": name,
            "bits": [one["measures"][0]["value"] for one in results.values()],
            "parameters": [one["parameters"] for one in results.values()],
            "shared": [bits[name] for bits in shared],
            "passes": next(iter(results.values())).get("passes"),
        }
        for name, results in trained.items()
    ]
    columns = [
        {"title": "design", "field": "design"},
        {"title": "bits per character", "field": "bits", "format": ".3f"},
        {"title": "by shared weights", "field": "shared", "format": ".3f"},
        {"title": f"parameters, at most {limit:,.0f}", "field": "parameters", "format": ",.0f"},
        {"title": "forward passes for theta and the answer", "field": "passes", "format": ",.0f"},
    ]
    return {"columns": columns, "rows": rows}


def pairs_table(trained: Trained) -> dict[str, Any]:
    """The search against everything else, seed by seed, and what was ranked again against the search."""
    judged = {
        name: {seed: (Measure(**one["measures"][0]),) for seed, one in results.items()}
        for name, results in trained.items()
    }
    pairs = [(SEARCHED, other) for other in trained if other not in (SEARCHED, RERANKED)]
    found = [compare(judged, *pair) for pair in [*pairs, (RERANKED, SEARCHED)]]
    rows = pair_rows([one for one in found if one is not None])
    columns = [{"title": title, "field": title} for title in PAIRS_HEADER]
    return {"columns": columns, "rows": [dict(zip(PAIRS_HEADER, row, strict=True)) for row in rows]}


def answers_table(trained: Trained) -> dict[str, Any]:
    """What was chosen: a row per seed and way to search."""
    rows = [
        {"answer": name, "seed": seed, "bits": one["measures"][0]["value"], **written(one["architecture"])}
        for name in (SEARCHED, RERANKED, RANKED)
        for seed, one in trained[name].items()
    ]
    columns = [
        {"title": "answer", "field": "answer"},
        {"title": "seed", "field": "seed", "format": "d"},
        {"title": "mixers", "field": "mixers"},
        {"title": "widths", "field": "widths"},
        {"title": "bits per character", "field": "bits", "format": ".3f"},
    ]
    return {"columns": columns, "rows": rows}


def written(architecture: Mapping[str, str]) -> dict[str, str]:
    """The mixers as letters and the widths, layer by layer."""
    layers = range(len(architecture) // 2)
    mixers = "".join(MIXERS[architecture[f"mixer {layer}"]] for layer in layers)
    return {"mixers": f"`{mixers}`", "widths": " ".join(architecture[f"ffn {layer}"] for layer in layers)}


def source_of(folder: Path, seeds: Sequence[int], made: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """Where the numbers come from, as the results say it."""
    commits = unique(one["commit"] for one in made)
    commands = unique(one["command"].replace(str(folder), "F") for one in made)
    return {
        "command": [re.sub(r"^python \S*benchmarks/", "benchmarks/", one) for one in commands],
        "seeds": f"{seeds[0]} to {seeds[-1]}",
        "commit" if len(commits) == 1 else "commits": ", ".join(commits),
        "machine": "; ".join(unique(f"{one['machine']}, {one['versions']}" for one in made)),
    }


def unique(texts: Iterable[str]) -> Sequence[str]:
    """The different ones, in the order in which they come."""
    return list(dict.fromkeys(texts))


def draw(trained: Trained, path: Path) -> None:
    """Draw what designs are worth, and what the searches chose."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    draw_values(left, trained)
    draw_mixers(right, [one["architecture"] for one in trained[SEARCHED].values()])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def draw_values(axes: Any, trained: Trained) -> None:
    """Bits per character, a dot per seed."""
    for place, (name, results) in enumerate(trained.items()):
        values = [one["measures"][0]["value"] for one in results.values()]
        color = "#8a8a8a" if name.endswith("by hand") else "#1f5fa8"
        axes.plot(values, [place] * len(values), "o", ms=4, alpha=0.6, color=color)
        axes.plot(statistics.fmean(values), place, "|", ms=16, mew=2, color=color)
    axes.set_yticks(range(len(trained)), list(trained))
    axes.invert_yaxis()
    axes.set_xlabel("bits per character; a dot per seed, a bar for the mean")
    axes.grid(axis="x", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def draw_mixers(axes: Any, answers: Sequence[Mapping[str, str]]) -> None:
    """How many searches chose which mixer, layer by layer."""
    layers = range(len(answers[0]) // 2)
    counts = [[sum(one[f"mixer {layer}"] == mixer for one in answers) for layer in layers] for mixer in MIXERS]
    axes.imshow(counts, cmap="Blues", vmin=0, vmax=len(answers), aspect="auto")
    for row, line in enumerate(counts):
        for layer, count in enumerate(line):
            color = "w" if count > len(answers) / 2 else "k"
            axes.text(layer, row, count or "", ha="center", va="center", color=color)
    widths = [statistics.fmean(int(one[f"ffn {layer}"]) for one in answers) for layer in layers]
    axes.set_xticks(layers, [f"{layer}\n{width:.0f}" for layer, width in zip(layers, widths, strict=True)])
    axes.set_yticks(range(len(MIXERS)), list(MIXERS))
    axes.set_xlabel("layer, and its mean width")
    axes.set_title(f"{SEARCHED}: seeds per mixer", fontsize=10)


if __name__ == "__main__":
    main()
