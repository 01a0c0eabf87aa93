"""The study that `advnas search` was asked for."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_args

from advnas.arguments import did_you_mean
from advnas.cli.commands import Search

if TYPE_CHECKING:
    from advnas.strategies import Answer
    from advnas.studies.study import Study

TASK, STRATEGY = "python_source", "contrast"  # where nothing else is asked for
EPOCHS, SEEDS = 60, 3  # of a network of the user's own


def study_of(asked: Search, options: Mapping[str, Any]) -> "Study":
    """The user's own network, a built-in space on a built-in task, or the study that a task brings along."""
    from advnas.arguments import find
    from advnas.paper import SEARCHES
    from advnas.studies.built_in import MAKE_SEARCH
    from advnas.tasks import TASKS

    if asked.entry is not None:
        if asked.task or asked.space:
            raise ValueError(f"{asked.entry} brings its own task and space. Leave out --task and --space.")
        return _own_network(asked, asked.entry, options, (EPOCHS, None, None))
    name = asked.task or TASK
    task = find("task", TASKS, name)
    if name in SEARCHES:
        return _with_own_study(asked, options)
    space = {"space": asked.space} if asked.space else {}
    processes = {"processes": asked.processes} if asked.processes != 1 else {}
    made = {"task": name, **space, **processes, **options}
    return _own_network(asked, MAKE_SEARCH, made, (task.epochs, task.warmup, task.retrain_epochs))


def default_seeds(asked: Search) -> int:
    """How many searches there are where nobody says."""
    from advnas.arguments import find
    from advnas.tasks import TASKS

    return SEEDS if asked.entry is not None else int(find("task", TASKS, asked.task or TASK).seeds)


def _own_network(
    asked: Search, entry: str, options: Mapping[str, Any], usual: tuple[int, int | None, int | None]
) -> "Study":
    """Put a study together. usual: epochs, those of the warm-up and of the retraining, if nothing else is asked."""
    from advnas.arguments import check_count
    from advnas.studies.limits import read_limits
    from advnas.studies.own_network import OwnNetworkSettings, OwnNetworkStudy

    epochs, warmup, retrain_epochs = usual
    if asked.epochs is not None:  # the usual numbers belong to the usual length
        epochs, warmup, retrain_epochs = check_count("--epochs", asked.epochs), None, None
    warmup = epochs // 3 if warmup is None else warmup
    retrain_epochs = max(1, epochs - warmup) if retrain_epochs is None else retrain_epochs
    settings = OwnNetworkSettings(
        entry,
        dict(options),
        epochs=epochs,
        warmup=warmup if asked.warmup is None else asked.warmup,
        retrain_epochs=retrain_epochs if asked.retrain_epochs is None else asked.retrain_epochs,
        device=asked.device or "cpu",
        precision=asked.precision,
        processes=asked.processes or 1,
        draws=asked.draws or "shared",  # type: ignore[arg-type]
        limits=read_limits(asked.limit),
        answer=_checked_answer(asked.answer, asked.strategy or STRATEGY),
    )
    return OwnNetworkStudy(settings)


def _checked_answer(answer: str | None, strategy: str) -> "Answer | None":
    from advnas.strategies import Answer, answers_of

    known = get_args(Answer)
    if answer is not None and answer not in known:
        meant = did_you_mean(answer, known)
        raise ValueError(f"--answer must be one of {', '.join(known)}, got {answer!r}{meant}.")
    possible = answers_of(strategy)
    if answer is not None and answer not in possible:
        raise ValueError(
            f"{strategy} mixes operations and draws no architecture, so that no {answer} is known. Write --answer "
            f"{' or '.join(possible)}, or leave it out."
        )
    return answer


def _with_own_study(asked: Search, options: Mapping[str, Any]) -> "Study":
    """A task whose study decides about everything but its length."""
    from advnas.paper import SEARCHES
    from advnas.tasks import TASKS
    from advnas.tasks.data_folder import data_folder

    task = asked.task or TASK
    for name in ("warmup", "device", "precision", "answer"):
        if getattr(asked, name) is not None:
            raise ValueError(f"The task {task} knows no --{name}. Leave it out.")
    if asked.limit:
        raise ValueError(f"The task {task} knows no --limit. Leave it out, or search a network of your own.")
    if asked.processes != 1:
        raise ValueError(f"The task {task} is searched by one process. Leave out --processes.")
    if asked.space not in (None, TASKS[task].space):
        raise ValueError(f"The space of {task} is {TASKS[task].space}, got {asked.space!r}.")
    given = {name: getattr(asked, name) for name in ("epochs", "retrain_epochs")}
    changes = dict(options) | {name: value for name, value in given.items() if value is not None}
    study: Study = SEARCHES[task].load()(changes, data_folder())
    return study
