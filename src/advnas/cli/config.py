"""The options of `advnas search` from a file: strict, so that a misspelt one is not passed over."""

import tomllib
from collections.abc import Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from advnas.cli.commands import Search

_NOT_IN_FILES = {"config", "resume", "json"}
_COUNTS = {"epochs", "warmup", "retrain_epochs", "seed", "seeds", "jobs", "processes"}
KEYS = tuple(field.name for field in fields(Search) if field.name not in _NOT_IN_FILES)


def merged(search: Search) -> tuple[Search, dict[str, Any]]:
    """What was asked for on the command line, else in the file, and the file's [options]."""
    if search.config is None:
        return search, {}
    content = read(search.config)
    options = content.pop("options", {})
    given = {key: value for key, value in content.items() if getattr(search, key) is None}
    if "folder" in given:
        given["folder"] = Path(given["folder"])
    return replace(search, **given), options


def read(path: Path) -> dict[str, Any]:
    """The content of a file that has nothing wrong with it."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text in UTF-8: {error}.") from error
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f'{path} is not TOML: {error}. Write lines such as strategy = "gdas".') from error
    except RecursionError as error:
        raise ValueError(f"{path} nests its values too deeply.") from error
    for key, value in content.items():
        _check(path, key, value)
    return content


def _check(path: Path, key: str, value: object) -> None:
    if key == "options":
        if not isinstance(value, Mapping):
            raise ValueError(f"{path}: options must be a table, written [options], got {value!r}.")
    elif key not in KEYS:
        close = get_close_matches(key, [*KEYS, "options"], n=1)
        known = f"Did you mean {close[0]!r}?" if close else f"Known are {', '.join([*KEYS, 'options'])}."
        raise ValueError(f"{path}: there is no {key!r}. {known}")
    elif key in _COUNTS:
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"{path}: {key} must be a whole number, got {value!r}.")
    elif not isinstance(value, str):
        raise ValueError(f"{path}: {key} must be a text in quotes, got {value!r}.")
