"""The user's function that makes a search: found by "module:function", called, and its errors shown as theirs."""

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import advnas
from advnas import strategies
from advnas.arguments import did_you_mean, nearest
from advnas.search import Search
from advnas.task import Task

MakeSearch = Callable[..., tuple[Search, Task]]

_OURS = str(Path(advnas.__file__).parent)


class EntryFailed(ValueError):
    """The user's module or function raised. The message has the lines of theirs that led there."""


def make(entry: str, strategy: str, seed: int, options: Mapping[str, Any]) -> tuple[Search, Task]:
    """Call the function that "module:function" names; importing its module runs its code.

    Args:
        entry: "module:function".
        strategy: its first argument.
        seed: its second one.
        options: further ones, by name.

    Raises:
        EntryFailed: the module or the function raised.
        ValueError: there is no such function, it cannot be called so, it returns something else, or a search with
            another strategy or seed.
    """
    function = load(entry, options)
    with _reporting_user_errors(entry):
        made = function(strategy, seed, **options)
    if not (
        isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], Search) and isinstance(made[1], Task)
    ):
        raise ValueError(
            f"{entry} must return a search and its task, got {_described(made)}. End it with "
            "`return advnas.Search(model, strategy, seed=seed), advnas.Task(training, validation, loss)`."
        )
    _check_passed_on(entry, made[0], strategy, seed)
    return made


def _check_passed_on(entry: str, search: Search, strategy: str, seed: int) -> None:
    """Refuse a search that would stand in a table under another name than its own."""
    name = strategies.name_of(search.strategy)
    for what, asked, got in (("strategy", strategy, name), ("seed", seed, search.seed)):
        if asked != got:
            raise ValueError(
                f"{entry} was called with {what} {asked!r}, and its search has {got!r}: runs would be compared "
                "under wrong names. Pass both on: advnas.Search(model, strategy, seed=seed). Seeds are those of "
                "the runs, and large ones for the fresh weights of retraining."
            )


def load(entry: str, options: Mapping[str, Any]) -> MakeSearch:
    """The function that "module:function" names, checked to take the options. Importing it runs its code."""
    module, colon, name = entry.partition(":")
    if not (module and colon and name):
        raise ValueError(f"An entry must be module:function, such as my_module:make_search, got {entry!r}.")
    if "" not in sys.path:  # where the user stands, as `python -m` has it
        sys.path.insert(0, "")
    found = _import(entry, module)
    if not hasattr(found, name):
        functions = [key for key, value in vars(found).items() if callable(value) and not key.startswith("_")]
        raise ValueError(f"The module {module!r} has no {name!r}{did_you_mean(name, functions)}.")
    function = getattr(found, name)
    _check_call(entry, function, options)
    return function  # type: ignore[no-any-return]


def _import(entry: str, module: str) -> ModuleType:
    try:
        with _reporting_user_errors(entry):
            return importlib.import_module(module)
    except EntryFailed as error:
        missing = error.__cause__
        if not isinstance(missing, ModuleNotFoundError) or not f"{module}.".startswith(f"{missing.name}."):
            raise
        meant = did_you_mean(module, (path.stem for path in Path.cwd().glob("*.py")))
        raise ValueError(
            f"There is no module {module!r}{meant} in {Path.cwd()} or among the installed ones. Write the entry "
            "as module:function, without .py, and start where the module lies."
        ) from error


@contextmanager
def _reporting_user_errors(entry: str) -> Iterator[None]:
    """Show what users' code raises with their lines alone; errors of built-in functions are sentences already."""
    try:
        yield
    except (Exception, SystemExit) as error:  # a script that ends itself is no module
        if entry.startswith("advnas."):
            raise
        told = traceback.format_exception_only(error)
        lines = sorted(told, key=lambda line: line.startswith(" "))  # a SyntaxError is told after its place
        frames = traceback.format_list(
            [frame for frame in traceback.extract_tb(error.__traceback__) if _is_user_code(frame)]
        )
        raise EntryFailed(f"{entry} raised {''.join([*lines, *frames])}".rstrip()) from error


@contextmanager
def reporting_task_errors(entry: str) -> Iterator[None]:
    """Show what a loss or a metric raises in the same way; what this package says of them is a sentence already."""
    try:
        with _reporting_user_errors(f"The loss or the metric of {entry}"):
            yield
    except EntryFailed as failed:
        cause = failed.__cause__
        assert cause is not None
        if isinstance(cause, ValueError) and traceback.extract_tb(cause.__traceback__)[-1].filename.startswith(
            _OURS
        ):
            raise cause from None
        raise


def _is_user_code(frame: traceback.FrameSummary) -> bool:
    return not frame.filename.startswith((_OURS, "<frozen importlib", importlib.__file__))


def _check_call(entry: str, function: Any, options: Mapping[str, Any]) -> None:
    if not callable(function):
        raise ValueError(f"{entry} is {_described(function)}, not a function.")
    known = inspect.signature(function).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
    for option in options if not takes_any else ():
        if option not in known:
            raise ValueError(f"{entry} has no option {option!r}.{_nearest(option, list(known)[2:])}")
    try:
        inspect.signature(function).bind("contrast", 0, **options)
    except TypeError as error:
        raise ValueError(
            f"{entry} is called as make_search(strategy, seed, **options), and cannot be: {error}."
        ) from error


def _nearest(wrong: str, right: Iterable[str]) -> str:
    names = list(right)
    close = nearest(wrong, names)
    return f" Did you mean {close!r}?" if close else f" It has {', '.join(names) or 'none'}."


def _described(value: object) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {', '.join(type(part).__name__ for part in value) or 'nothing'}"
    return type(value).__name__
