"""Are the answers of a search better than what people write by hand?

Trains designs alone, exactly as the answers in the folder of a search were trained, with the same seeds, and
compares them seed by seed. Two jobs have designs:

    the main one (python_source)          two operations in turn in all 16 layers
    examples/hybrid_language_model.py     one mixer, or two in turn, and one width, as large as the limit allows

    .venv/bin/advnas search --folder F
    .venv/bin/python benchmarks/hand_designs.py F
    .venv/bin/python benchmarks/hand_designs.py F --json

For the language model start in the folder examples, where its module is.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from advnas import Search
from advnas.records.provenance import provenance
from advnas.reports.pairs import difference
from advnas.reports.study import read_study
from advnas.studies.folder import read_settings
from advnas.studies.own_network import OwnNetworkSettings, OwnNetworkStudy
from kept import kept

Design = Mapping[str, tuple[str, ...]]
"""Operations in turn, by the kind of decision: the name of a decision without its number."""

DESIGNS: Mapping[str, Mapping[str, Design]] = {
    "python_source": {
        "attention and MLP": {"layer": ("attention", "mlp")},
        "convolution 9 and MLP": {"layer": ("conv9", "mlp")},
        "convolution 3 and MLP": {"layer": ("conv3", "mlp")},
    },
    "hybrid_language_model:make_search": {
        "attention": {"mixer": ("attention",)},
        "window": {"mixer": ("window",)},
        "convolution": {"mixer": ("convolution",)},
        "recurrence": {"mixer": ("recurrence",)},
        "attention and convolution": {"mixer": ("attention", "convolution")},
    },
}
"""By the task of a search, or the function that made it."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--strategy", default="contrast")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = compare(options.folder, options.strategy)
    if options.json:
        print(json.dumps({"rows": rows, "source": provenance()}, indent=1))
        return
    for row in rows:
        gain = row["difference"]
        print(
            f"{row['design']:26s} {row['mean']:.4f}; {options.strategy} is better by {gain['mean']:+.4f}", end=" "
        )
        print(f"({gain['low']:+.4f} to {gain['high']:+.4f}, p = {gain['p']:.2g})")


def study_in(folder: Path) -> OwnNetworkStudy:
    """The study that a folder is of."""
    return OwnNetworkStudy(read_settings(folder, OwnNetworkSettings))


def designs_of(study: OwnNetworkStudy) -> Mapping[str, Design]:
    """What people would write instead of searching."""
    job = str(study.settings.options.get("task", study.settings.entry))
    if job not in DESIGNS:
        raise ValueError(f"There are no designs by hand for {job}, only for {', '.join(DESIGNS)}.")
    return DESIGNS[job]


def compare(folder: Path, strategy: str) -> list[dict[str, Any]]:
    """Train every design with every seed of the search, and pair it with the answer of that seed."""
    study = study_in(folder)
    runs = [run for run in read_study(folder).of(strategy) if run.evaluation]
    answers = [run.evaluation.measures[0].value for run in runs if run.evaluation]
    rows = []
    for name, design in designs_of(study).items():
        trained = [train(study, folder, run.seed, design) for run in runs]
        losses = [one["measures"][0]["value"] for one in trained]
        gains = difference([loss - answer for loss, answer in zip(losses, answers, strict=True)])
        rows.append(
            {
                "design": name,
                "parameters": trained[0]["parameters"],
                "losses": losses,
                "mean": sum(losses) / len(losses),
                "answers": answers,
                "difference": {name: float(value) for name, value in gains._asdict().items()},
                "significant": gains.significant,
            }
        )
    return rows


def train(study: OwnNetworkStudy, folder: Path, seed: int, design: Design) -> dict[str, Any]:
    """Train one design, or read what an earlier call has left."""
    name = "-".join(operation for operations in design.values() for operation in operations)
    where = folder / "hand" / f"{name}-{seed}"

    def measure() -> dict[str, Any]:
        architecture = architecture_of(design, study.begin("random", seed)[0])
        return study.retrain(seed, architecture, where) | {"provenance": provenance()}

    return kept(where / "result.json", measure)


def architecture_of(design: Design, search: Search) -> dict[str, str]:
    """Write a design out for every decision.

    All decisions of kinds that the design does not name get the same operation: the last one within the limits,
    which is the largest where operations are widths.
    """
    names = [decision.name.rpartition(" ") for decision in search.space.decisions]
    chosen = {
        f"{kind} {number}": design[kind][int(number) % len(design[kind])]
        for kind, _, number in names
        if kind in design
    }
    left = [decision for decision in search.space.decisions if decision.name not in chosen]
    whole = [
        chosen | dict.fromkeys((decision.name for decision in left), operation)
        for operation in (left[0].operations if left else [""])
    ]
    within = [one for one in whole if search.policy.budget.allows(one)]
    if not within:
        raise ValueError(f"The design {dict(design)} is outside of the limits, whatever the other decisions are.")
    return within[-1]


if __name__ == "__main__":
    main()
