"""`advnas export` and `advnas retrain`: what a search has found, as a file or trained once more."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from advnas.cli.commands import Export, Retrain

if TYPE_CHECKING:
    from advnas.reports.study import Operations, RunRecords
    from advnas.studies.own_network import OwnNetworkStudy


@dataclass(frozen=True)
class _Found:
    """A finished run, its answer, and the study that can build it again."""

    study: "OwnNetworkStudy"
    run: "RunRecords"
    architecture: "Operations"


def _find(folder: Path, name: str | None) -> _Found:
    """The named run, or of the first strategy that learns the one that validates best."""
    from advnas.arguments import find
    from advnas.reports.study import best_run, read_study
    from advnas.studies.folder import read_settings
    from advnas.studies.own_network import OwnNetworkSettings, OwnNetworkStudy

    records = read_study(folder)
    if records.name != OwnNetworkStudy.name:
        raise ValueError(f"{folder} holds the study {records.name!r}. Give the folder of an `advnas search`.")
    study = OwnNetworkStudy(read_settings(folder, OwnNetworkSettings))
    finished = {run.name: run for run in records.runs if run.evaluation}
    if name is None:
        run = best_run(records, (*records.learning, *records.baselines)[0])
    else:
        run = find("finished run", finished, name)
    assert run.evaluation is not None
    return _Found(study, run, run.evaluation.architecture)


def export_answer(asked: Export) -> None:
    """Build the answer with its weights, write it, and tell how far it is from the network."""
    from advnas.export import export
    from advnas.studies.own_network import example_inputs

    found = _find(asked.folder, asked.run)
    make = found.study.retrained if asked.weights == "retrained" else found.study.inherited
    network, task, parity = make(
        found.run.strategy, found.run.seed, found.architecture, found.run.folder / "evaluation"
    )
    target = asked.folder / "export" / f"{found.run.name}-{asked.weights}"
    written = export(network, example_inputs(network, task), target, asked.to, architecture=found.architecture)
    print(f"wrote {written.path}")
    batch = "batches of any size" if written.dynamic_batch else "batches of the example's size only"
    print(f"It takes {batch}; its outputs differ from the module's by at most {written.difference:.2g}.")
    if parity is not None:
        print(f"The module's differ from those of the searched network by at most {parity:.2g}.")


def retrain_answer(asked: Retrain) -> None:
    """Train the answer from scratch and judge it."""
    from advnas.arguments import check_count
    from advnas.records.files import write_atomically

    found = _find(asked.folder, asked.run)
    settings = found.study.settings
    epochs = settings.retrain_epochs if asked.epochs is None else check_count("--epochs", asked.epochs)
    seed = found.run.seed if asked.seed is None else check_count("--seed", asked.seed, least=0)
    study = replace(found.study, settings=replace(settings, retrain_epochs=epochs))
    where = asked.folder / "retrained" / f"{found.run.name}-{epochs}-{seed}"
    outcome = study.retrain(seed, found.architecture, where)
    write_atomically(where / "result.json", json.dumps(outcome, indent=1) + "\n")
    for measure in outcome["measures"]:
        print(f"{measure['name']}: {measure['value']:.4g}")
    print(f"wrote {where / 'retrained.pt'}")
