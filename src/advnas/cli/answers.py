"""`advnas export` and `advnas retrain`: what a search has found, as a file or trained once more."""

import json
import re
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from advnas.cli.commands import Export, Retrain

if TYPE_CHECKING:
    from advnas.reports.contents import Operations
    from advnas.reports.study import RunRecords, StudyRecords
    from advnas.studies.own_network import OwnNetworkSettings, OwnNetworkStudy


@dataclass(frozen=True)
class _Found:
    """A finished run, its answer, and the study that can build it again.

    epochs: of the search's own retraining; None for a plain `Search.run`, which has none.
    """

    study: "OwnNetworkStudy"
    run: "RunRecords"
    architecture: "Operations"
    epochs: int | None


def _find(asked: Export | Retrain) -> _Found:
    """The named run, or the one that validates best."""
    from advnas.reports.study import PLAIN_RUN, read_study
    from advnas.studies.own_network import OwnNetworkStudy

    records = read_study(asked.folder)
    if records.name == PLAIN_RUN:
        _refuse_part_of_search(asked)
    if records.name not in (PLAIN_RUN, OwnNetworkStudy.name):
        raise ValueError(f"{asked.folder} holds the study {records.name!r}. Give the folder of an `advnas search`.")
    if records.name != PLAIN_RUN and not any(run.evaluation for run in records.runs):
        raise _not_over(asked.folder, f"advnas search --resume --folder {quote(str(asked.folder))}")
    run = records.runs[0] if records.name == PLAIN_RUN else _chosen(records, asked.run)
    architecture = run.answer(run.latest)
    if not run.finished or architecture is None:
        raise _not_over(asked.folder, f"run(..., folder={str(asked.folder)!r}, resume=True)")
    settings = _settings(records, asked)
    epochs = None if records.name == PLAIN_RUN else settings.retrain_epochs
    return _Found(OwnNetworkStudy(settings), run, architecture, epochs)


def _refuse_part_of_search(asked: Export | Retrain) -> None:
    """A run of a search is exported with the settings of the search, which lie two folders above."""
    from advnas.records.files import parse_json
    from advnas.studies.own_network import OwnNetworkStudy

    run = asked.folder.resolve()
    above = run.parents[1] / "study.json"
    if above.exists() and parse_json(above.read_bytes(), str(above)).get("experiment") == OwnNetworkStudy.name:
        command = f"advnas {type(asked).__name__.lower()} {quote(str(above.parent))} --run {run.name}"
        raise ValueError(f"{asked.folder} is a run of the search in {above.parent}. Write: {command}")


def _not_over(folder: Path, how: str) -> ValueError:
    return ValueError(f"The search in {folder} is not over, so there is no answer yet. Go on with: {how}")


def _chosen(records: "StudyRecords", name: str | None) -> "RunRecords":
    from advnas.arguments import find
    from advnas.reports.judging import best_run

    if name is None:
        return best_run(records)
    run: RunRecords = find("finished run", {run.name: run for run in records.runs if run.evaluation}, name)
    return run


def _settings(records: "StudyRecords", asked: Export | Retrain) -> "OwnNetworkSettings":
    """Where the network comes from: the folder says it, or --entry."""
    from advnas.reports.study import PLAIN_RUN
    from advnas.studies.folder import read_settings
    from advnas.studies.own_network import OwnNetworkSettings

    if records.name == PLAIN_RUN:
        if asked.entry is None:
            raise ValueError(
                f"{asked.folder} is of a Search.run and does not say where its network comes from. Add --entry "
                "module:function; the function takes a strategy's name and a seed, and returns (Search, Task)."
            )
        return OwnNetworkSettings(asked.entry)
    settings = read_settings(asked.folder, OwnNetworkSettings)
    return settings if asked.entry is None else replace(settings, entry=asked.entry)


def export_answer(asked: Export) -> None:
    """Build the answer with its weights, write it, and tell how far it is from the network."""
    from advnas.export import export
    from advnas.studies.inputs import example_inputs
    from advnas.studies.own_network import load_searched

    found = _find(asked)
    study, run = found.study, found.run
    if asked.weights == "retrained":
        trained = _newest_retraining(asked.folder, found)
        network, task, parity = study.retrained(trained.seed, found.architecture, trained.weights)
        print(f"The weights are those of {trained}: {trained.weights}")
    else:
        load = partial(load_searched, run.folder)
        network, task, parity = study.inherited(run.seed, found.architecture, load)
        print(f"The weights are those that the answer has in the searched network of {run.name}.")
    target = asked.folder / "export" / f"{run.name}-{asked.weights}"
    written = export(network, example_inputs(network, task), target, asked.to, architecture=found.architecture)
    print(f"wrote {written.path}")
    batch = "batches of any size" if written.dynamic_batch else "batches of the example's size only"
    print(f"It takes {batch}; its outputs differ from the module's by at most {written.difference:.2g}.")
    if parity is not None:
        print(f"The module's differ from those of the searched network by at most {parity:.2g}.")


@dataclass(frozen=True)
class _Retraining:
    """One that is complete. weights: its file. epochs: None where that is not recorded."""

    weights: Path
    epochs: int | None
    seed: int

    def __str__(self) -> str:
        length = "" if self.epochs is None else f" for {self.epochs} epoch{'s' * (self.epochs != 1)}"
        return f"the retraining{length} with seed {self.seed}"


def _newest_retraining(folder: Path, found: _Found) -> _Retraining:
    """The latest of the search's own retraining and those by `advnas retrain`."""
    run = found.run
    known = [_Retraining(run.folder / "evaluation" / "retrained.pt", found.epochs, run.seed)]
    for weights in folder.glob("retrained/*/retrained.pt"):
        if named := re.fullmatch(rf"{re.escape(run.name)}-(\d+)-(\d+)", weights.parent.name):
            known.append(_Retraining(weights, *map(int, named.groups())))
    complete = [one for one in known if one.weights.exists()]
    if not complete:
        raise ValueError(
            f"The answer in {folder} was not retrained. Write `advnas retrain {quote(str(folder))} --epochs N` "
            "first, or add --weights inherited."
        )
    return max(complete, key=lambda one: one.weights.stat().st_mtime_ns)


def retrain_answer(asked: Retrain) -> None:
    """Train the answer from scratch and judge it."""
    from advnas.arguments import check_count
    from advnas.records.files import write_atomically

    found = _find(asked)
    length = found.epochs if asked.epochs is None else asked.epochs
    if length is None:
        raise ValueError(f"{asked.folder} is of a Search.run, whose answer was not retrained. Add --epochs N.")
    epochs = check_count("--epochs", length)
    seed = found.run.seed if asked.seed is None else check_count("--seed", asked.seed, least=0)
    study = replace(found.study, settings=replace(found.study.settings, retrain_epochs=epochs))
    where = asked.folder / "retrained" / f"{found.run.name}-{epochs}-{seed}"
    outcome = study.retrain(seed, found.architecture, where)
    write_atomically(where / "result.json", json.dumps(outcome, indent=1) + "\n")
    for measure in outcome["measures"]:
        print(f"{measure['name']}: {measure['value']:.4g}")
    print(f"wrote {where / 'retrained.pt'}")
