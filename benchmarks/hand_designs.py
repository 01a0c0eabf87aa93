"""Are the answers of the main job better than what people write by hand?

Trains three designs alone, exactly as the answers in the folder of a search of python_source were trained, with the
same seeds, and compares them seed by seed: two operations in turn in all 16 layers.

    .venv/bin/advnas search --folder F
    .venv/bin/python benchmarks/hand_designs.py F
    .venv/bin/python benchmarks/hand_designs.py F --json
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from advnas.records.files import parse_json, write_atomically
from advnas.records.provenance import provenance
from advnas.reports.pairs import difference
from advnas.reports.study import read_study
from advnas.studies.folder import read_settings
from advnas.studies.own_network import OwnNetworkSettings, OwnNetworkStudy

DESIGNS = {
    "attention and MLP": ("attention", "mlp"),
    "convolution 9 and MLP": ("conv9", "mlp"),
    "convolution 3 and MLP": ("conv3", "mlp"),
}


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
            f"{row['design']:24s} {row['mean']:.4f}; {options.strategy} is better by {gain['mean']:+.4f}", end=" "
        )
        print(f"({gain['low']:+.4f} to {gain['high']:+.4f}, p = {gain['p']:.2g})")


def compare(folder: Path, strategy: str) -> list[dict[str, Any]]:
    """Train every design with every seed of the search, and pair it with the answer of that seed."""
    study = OwnNetworkStudy(read_settings(folder, OwnNetworkSettings))
    runs = [run for run in read_study(folder).of(strategy) if run.evaluation]
    answers = [run.evaluation.measures[0].value for run in runs if run.evaluation]
    rows = []
    for design, operations in DESIGNS.items():
        trained = [train(study, folder, run.seed, operations) for run in runs]
        losses = [one["measures"][0]["value"] for one in trained]
        gains = difference([loss - answer for loss, answer in zip(losses, answers, strict=True)])
        rows.append(
            {
                "design": design,
                "parameters": trained[0]["parameters"],
                "losses": losses,
                "mean": sum(losses) / len(losses),
                "answers": answers,
                "difference": {name: float(value) for name, value in gains._asdict().items()},
                "significant": gains.significant,
            }
        )
    return rows


def train(study: OwnNetworkStudy, folder: Path, seed: int, operations: tuple[str, str]) -> dict[str, Any]:
    """Train one design, or read what an earlier call has left."""
    where = folder / "hand" / f"{'-'.join(operations)}-{seed}"
    if not (where / "result.json").exists():
        names = [f"layer {number}" for number in range(len(study.begin("random", seed)[0].space))]
        architecture = {name: operations[number % 2] for number, name in enumerate(names)}
        write_atomically(where / "result.json", json.dumps(study.retrain(seed, architecture, where)))
    return parse_json((where / "result.json").read_bytes(), str(where))


if __name__ == "__main__":
    main()
