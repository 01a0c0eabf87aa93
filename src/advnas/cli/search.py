"""`advnas search`, `export` and `retrain`: from a network with open decisions to a plain one, and out."""

import json
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advnas.arguments import nearest
from advnas.cli.commands import Export, Retrain, Search
from advnas.cli.config import completed, written
from advnas.cli.progress import study_progress

if TYPE_CHECKING:
    from rich.console import Console

    import advnas
    from advnas.reports.study import Run, Study
    from advnas.reports.verdict import Remark
    from advnas.search.plan import Plan
    from advnas.studies.execute import Job
    from advnas.studies.own_network import EntryExperiment
    from advnas.studies.study import Experiment

_BUILT_IN = {
    "digits": ("advnas.studies.images:digits", 60),
    "cifar10": ("advnas.studies.images:cifar10_images", 24),
}
_ASKED = "search.toml"  # in a search's folder: what it was asked for
_TASKS = (*_BUILT_IN, "penn_treebank")


def run_search(asked: Search) -> None:
    """Search, retrain and judge, for some seeds, and the same for random search; then a table and a report."""
    from advnas import strategies
    from advnas.arguments import check_count
    from advnas.parallel.launch import launched
    from advnas.studies.execute import plan

    asked, options = completed(asked, asked.config, {})
    folder = _folder(asked)
    if asked.resume and (folder / _ASKED).exists():
        asked, options = completed(asked, folder / _ASKED, options)
    asked = replace(asked, processes=_processes(asked))
    strategy = asked.strategy or "advantage"
    strategies.strategy_type(strategy)
    first = check_count("--seed", asked.seed or 0, least=0)
    count = check_count("--seeds", 3 if asked.seeds is None else asked.seeds)
    at_once = check_count("--jobs", 2 if asked.jobs is None else asked.jobs)
    experiment = _experiment(asked, options)
    experiment.check()
    search = experiment.make_search(strategy, first)  # what would stop every run shall stop before the first
    if asked.plan:
        _show_plan(experiment, search, first, count, at_once, as_json=asked.json)
        return
    if not launched():
        _claim(folder, experiment, asked, options)
    names = list(dict.fromkeys((strategy, "random")))
    jobs = plan(experiment, names, range(first, first + count))
    if _carry_out(asked, experiment, jobs, folder, at_once):
        _present(folder, strategy, as_json=asked.json)


def _claim(folder: Path, experiment: "Experiment", asked: Search, options: Mapping[str, Any]) -> None:
    from advnas.records.files import write_atomically
    from advnas.studies.folder import claim_folder

    claim_folder(folder, experiment.name, experiment.settings)
    write_atomically(folder / _ASKED, written(asked, options))


def _processes(asked: Search) -> int:
    """How many do a search together: as many as were asked for, or as torchrun has started."""
    from advnas.arguments import check_count
    from advnas.parallel.launch import launched

    started = int(os.environ["WORLD_SIZE"]) if launched() else 1
    processes = check_count("--processes", started if asked.processes is None else asked.processes)
    if started not in (1, processes):
        raise ValueError(f"torchrun has started {started} processes, got --processes {processes}. Leave it out.")
    if processes > 1 and asked.jobs not in (None, 1):
        raise ValueError(
            f"{processes} processes do one run after the other, got --jobs {asked.jobs}. Leave it out."
        )
    if processes == 1 and asked.draws is not None:
        raise ValueError("--draws is for searches by several processes. Leave it out, or add --processes N.")
    if asked.draws not in (None, "shared", "independent"):
        raise ValueError(f"--draws must be shared or independent, got {asked.draws!r}.")
    return processes


def _carry_out(asked: Search, experiment: "Experiment", jobs: "list[Job]", folder: Path, at_once: int) -> bool:
    """Do all runs, in the way that was asked for; whether it is this process's turn to show them."""
    from advnas.parallel.group import RankGone
    from advnas.parallel.launch import launched, spawn
    from advnas.search import SearchStopped
    from advnas.studies.engines import Processes
    from advnas.studies.execute import execute

    again = "the same command and" if launched() else "advnas search"
    go_on = f"Go on with: {again} --resume --folder {folder}"
    try:
        if launched():
            return _take_part(experiment, jobs, folder) == 0
        if asked.processes != 1:
            assert asked.processes is not None
            spawn(_take_part, (experiment, jobs, folder), asked.processes)
            return True
        with study_progress(experiment, jobs, folder) as on_done:
            engine = Processes(at_once) if at_once > 1 else None
            execute(experiment, jobs, folder, engine=engine, on_done=on_done)
    except RankGone as gone:
        raise RankGone(f"{gone} The last checkpoint is in {folder}. {go_on}") from gone
    except KeyboardInterrupt as stopped:
        raise SearchStopped(f"{stopped} {go_on}") from None
    return True


def _take_part(experiment: "Experiment", jobs: "list[Job]", folder: Path) -> int:
    """Be one of several processes that do all runs together; its rank. Rank 0 writes the folder and tells."""
    from advnas.parallel.launch import joined
    from advnas.studies.execute import execute
    from advnas.studies.folder import claim_folder

    with joined() as group:
        group.on_rank_zero(partial(claim_folder, folder, experiment.name, experiment.settings))
        claim_folder(folder, experiment.name, experiment.settings)
        telling = study_progress(experiment, jobs, folder) if group.rank == 0 else nullcontext()
        with telling as on_done:
            execute(experiment, jobs, folder, on_done=on_done)
        return group.rank


def _show_plan(
    experiment: "Experiment", search: "advnas.Search", seed: int, seeds: int, processes: int, *, as_json: bool
) -> None:
    from rich.console import Console
    from rich.table import Table

    from advnas.arguments import format_size

    plan = search.plan(experiment.make_data(seed).losses(search)[0])
    length = experiment.length
    passes = length.turns + length.turns - length.warmup_turns
    total = 2 * seeds * passes * plan.pass_seconds / processes
    rows: dict[str, Any] = {
        "parameters": f"{plan.parameters:,}",
        "weights of all candidates": format_size(plan.weights),
        "weights of one architecture": format_size(plan.weights_of_one),
        "optimiser state": f"{plan.optimizer_factor:.3g} bytes a byte of weights",
        "activations of one architecture": format_size(plan.activations),
        "peak of a sparse step": _told(plan.sparse_peak, plan),
        "peak with weights='host' or 'disk'": _told(plan.stored_peak, plan),
        "peak of a dense step, at most": _told(plan.dense_peak, plan),
        "a forward and a backward pass": f"{plan.pass_seconds:.3g} s",
        "turns of a search": str(length),
        "all searches": f"about {total / 60:.0f} min without retraining, with {processes} at a time",
    }
    table = Table("what", "how much", title="Before anything runs")
    for name, value in rows.items():
        table.add_row(name, value)
    if as_json:
        peaks = {name: getattr(plan, name) for name in ("sparse_peak", "stored_peak", "dense_peak")}
        print(json.dumps(asdict(plan) | peaks | {"search_seconds": total}, indent=1))
    Console(stderr=as_json).print(table)


def _told(peak: int, plan: "Plan") -> str:
    from advnas.arguments import format_size

    fits = {True: "fits", False: "does not fit", None: "cannot tell whether it fits"}[plan.fits(peak)]
    return f"{format_size(peak)}: {fits}"


def _name(asked: Search) -> str:
    return asked.task or "digits" if asked.entry is None else asked.entry.rpartition(":")[2]


def _experiment(asked: Search, options: Mapping[str, Any]) -> "Experiment":
    if asked.entry is not None and (asked.task or asked.space):
        raise ValueError(f"{asked.entry} brings its own task and space. Leave out --task and --space.")
    task = asked.task or "digits"
    if asked.entry is None and task not in _TASKS:
        raise ValueError(f"There is no task {task!r}.{_meant(task, _TASKS)}")
    if asked.entry is None and task == "penn_treebank":
        return _penn_treebank(asked, options)
    return _entry_experiment(asked, options)


def _entry_experiment(asked: Search, options: Mapping[str, Any]) -> "Experiment":
    from advnas.arguments import check_count
    from advnas.studies.own_network import EntryExperiment, EntrySettings

    entry, epochs = (asked.entry, 60) if asked.entry is not None else _BUILT_IN[asked.task or "digits"]
    epochs = epochs if asked.epochs is None else check_count("--epochs", asked.epochs)
    settings = EntrySettings(
        entry,
        dict(options) | ({"space": asked.space} if asked.space else {}),
        epochs=epochs,
        warmup=epochs // 3 if asked.warmup is None else asked.warmup,
        retrain_epochs=max(1, 2 * epochs // 3) if asked.retrain_epochs is None else asked.retrain_epochs,
        device=asked.device or "cpu",
        precision=asked.precision or "float32",
        processes=asked.processes or 1,
        draws=asked.draws or "shared",  # type: ignore[arg-type]
    )
    return EntryExperiment(settings)


def _penn_treebank(asked: Search, options: Mapping[str, Any]) -> "Experiment":
    from advnas.paper.ptb import PRESETS, Ptb
    from advnas.tasks.data_folder import data_folder

    for name in ("warmup", "device", "precision"):
        if getattr(asked, name) is not None:
            raise ValueError(f"The task penn_treebank knows no --{name}. Leave it out.")
    if asked.processes != 1:
        raise ValueError("The task penn_treebank is searched by one process. Leave out --processes.")
    if asked.space not in (None, "recurrent_cell"):
        raise ValueError(f"The space of penn_treebank is recurrent_cell, got {asked.space!r}.")
    settings, known = PRESETS["laptop"], [field.name for field in fields(PRESETS["laptop"])]
    for name in options:
        if name not in known:
            raise ValueError(f"penn_treebank has no option {name!r}.{_meant(name, known)}")
    given = {name: getattr(asked, name) for name in ("epochs", "retrain_epochs")}
    changes = dict(options) | {name: value for name, value in given.items() if value is not None}
    return Ptb(replace(settings, **changes), data_folder())


def _meant(wrong: str, right: Sequence[str]) -> str:
    close = nearest(wrong, right)
    return f" Did you mean {close!r}?" if close else f" There are {', '.join(right)}."


def _folder(asked: Search) -> Path:
    """The one that was asked for, or the next below runs/; with --resume, the last."""
    from advnas.parallel.launch import launched, restarts

    if asked.folder is None and launched():
        raise ValueError("torchrun's processes must know where to meet. Add --folder F.")
    if asked.folder is not None:
        if not (asked.resume or restarts()) and (asked.folder / "study.json").exists():
            raise ValueError(
                f"{asked.folder} already holds a search. Add --resume to go on, or give another --folder."
            )
        return asked.folder
    folders = _numbered(Path("runs") / f"{_name(asked)}-{asked.strategy or 'advantage'}")
    last = folder = next(folders)
    while folder.exists():
        last, folder = folder, next(folders)
    return last if asked.resume else folder


def _numbered(base: Path) -> Iterator[Path]:
    yield base
    number = 2
    while True:
        yield base.with_name(f"{base.name}-{number}")
        number += 1


def _present(folder: Path, strategy: str, *, as_json: bool) -> None:
    from rich.console import Console

    from advnas.reports.study import read_study
    from advnas.reports.verdict import verdict

    study = read_study(folder)
    remarks, best = verdict(study, folder), best_run(study, strategy)
    assert best.evaluation is not None
    console = Console(stderr=as_json, highlight=False)
    _print_table(console, study)
    _print_traffic(console, folder, strategy)
    _print_remarks(console, remarks)
    console.print(f"\nThe answer ({best.name}, the one that validates best):")
    for decision, operation in best.evaluation.architecture.items():
        console.print(f"  {decision}: {operation}")
    page = _report(folder, console)
    console.print(f"\nGet it out:  advnas export {folder} --to pt2")
    if as_json:
        print(json.dumps(_summary(folder, study, best, [remark._asdict() for remark in remarks], page), indent=1))


def _print_table(console: "Console", study: "Study") -> None:
    """What the retrained answers are worth: mean ± standard deviation over the seeds."""
    from rich.table import Table

    from advnas.reports.tables import study_table

    numbers = study_table(study, None)
    shown = [place for place, column in enumerate(numbers.columns) if column.key not in ("seconds", "saved_mib")]
    table = Table(*("strategy", "seeds"), *(numbers.columns[place].heading for place in shown))
    for row in numbers.rows:
        table.add_row(row.strategy, row.runs, *(row.values[place].ours or "-" for place in shown))
    console.print(table)


def _print_remarks(console: "Console", remarks: "Sequence[Remark]") -> None:
    from rich.table import Table

    grid = Table.grid(padding=(0, 1))
    for remark in remarks:
        mark = {True: "[green]+[/]", False: "[red]![/]", None: "[yellow]-[/]"}[remark.good]
        grid.add_row(mark, remark.text)
    console.print(grid)


def _print_traffic(console: "Console", folder: Path, strategy: str) -> None:
    """What several processes told each other in a step, as a mean over the strategy's runs."""
    from advnas.studies.run import read_results

    results = [result for result in read_results(folder) if result["strategy"] == strategy]
    traffic = [result["traffic"] for result in results if "traffic" in result]
    if not traffic:
        return
    console.print(f"Bytes that each of {traffic[0]['processes']} processes handed over, a step:")
    for purpose in traffic[0]["bytes"]:
        mean = statistics.fmean(each["bytes"].get(purpose, 0) for each in traffic)
        console.print(f"  {mean:>12,.0f}  {purpose}")
    console.print(f"  {traffic[0]['network']:>12,}  for comparison: all weights of the network")


def _report(folder: Path, console: "Console") -> Path | None:
    try:
        from advnas.reports.page import write_report

        page = write_report(folder, None)[0]
    except ImportError:
        console.print("\nNo report: it needs matplotlib and jinja2. Write pip install 'advnas[reports]'.")
        return None
    console.print(f"\nReport:      {page}")
    return page


def _summary(
    folder: Path, study: "Study", best: "Run", remarks: list[dict[str, Any]], page: Path | None
) -> dict[str, Any]:
    evaluated = {run.name: run.evaluation for run in study.runs if run.evaluation}
    first = {name: found.measures[0].value for name, found in evaluated.items()}
    assert best.evaluation is not None
    return {
        "folder": str(folder),
        "measure": study.measures[0].name,
        "runs": first,
        "means": {
            name: statistics.fmean(first[run.name] for run in study.of(name) if run.name in first)
            for name in study.strategies
        },
        "answer": {"run": best.name, "architecture": dict(best.evaluation.architecture)},
        "verdict": remarks,
        "report": None if page is None else str(page),
    }


def best_run(study: "Study", strategy: str) -> "Run":
    """Of the finished runs of a strategy, the one whose retrained answer is best on the validation data."""
    runs = [run for run in study.of(strategy) if run.evaluation]
    if not runs:
        raise ValueError(f"No run of {strategy} has an answer that was retrained.")
    return min(runs, key=lambda run: run.evaluation.validation_score)  # type: ignore[union-attr]


@dataclass(frozen=True)
class _Answer:
    """A finished run, and what is needed to build its answer again."""

    experiment: "EntryExperiment"
    run: "Run"
    folder: Path


def _answer(folder: Path, run: str | None) -> _Answer:
    from advnas.reports.study import read_study
    from advnas.studies.folder import read_settings
    from advnas.studies.own_network import EntryExperiment, EntrySettings

    study = read_study(folder)
    if study.experiment != EntryExperiment.name:
        raise ValueError(f"{folder} holds the study {study.experiment!r}. Give the folder of an `advnas search`.")
    experiment = EntryExperiment(read_settings(folder, EntrySettings))
    learnt = [name for name in study.strategies if name != "random"] or ["random"]
    if run is None:
        return _Answer(experiment, best_run(study, learnt[0]), folder)
    runs = {each.name: each for each in study.runs if each.evaluation}
    if run not in runs:
        raise ValueError(f"{folder} has no finished run {run!r}.{_meant(run, list(runs))}")
    return _Answer(experiment, runs[run], folder)


def export_answer(asked: Export) -> None:
    """Build the answer with its weights, write it, and tell how far it is from the network."""
    from advnas.export import export
    from advnas.studies.own_network import example_inputs

    found = _answer(asked.folder, asked.run)
    where = found.folder / "runs" / found.run.name / "evaluation"
    assert found.run.evaluation is not None
    architecture = found.run.evaluation.architecture
    make = found.experiment.retrained if asked.weights == "retrained" else found.experiment.inherited
    network, task, parity = make(found.run.strategy, found.run.seed, architecture, where)
    target = found.folder / "export" / f"{found.run.name}-{asked.weights}"
    example = example_inputs(network, task)
    written = export(network, example, target, asked.to, architecture=architecture)
    print(f"wrote {written.path}")
    batch = "batches of any size" if written.dynamic_batch else "batches of the example's size only"
    print(f"It takes {batch}; its outputs differ from the module's by at most {written.difference:.2g}.")
    if parity is not None:
        print(f"The module's differ from those of the searched network by at most {parity:.2g}.")


def retrain_answer(asked: Retrain) -> None:
    """Train the answer from scratch and judge it."""
    from advnas.arguments import check_count
    from advnas.records.files import write_atomically

    found = _answer(asked.folder, asked.run)
    assert found.run.evaluation is not None
    settings = found.experiment.settings
    epochs = settings.retrain_epochs if asked.epochs is None else check_count("--epochs", asked.epochs)
    seed = found.run.seed if asked.seed is None else check_count("--seed", asked.seed, least=0)
    experiment = replace(found.experiment, settings=replace(settings, retrain_epochs=epochs))
    where = found.folder / "retrained" / f"{found.run.name}-{epochs}-{seed}"
    outcome = experiment.retrain(seed, found.run.evaluation.architecture, where)
    write_atomically(where / "result.json", json.dumps(outcome, indent=1) + "\n")
    for measure in outcome["measures"]:
        print(f"{measure['name']}: {measure['value']:.4g}")
    print(f"wrote {where / 'retrained.pt'}")
