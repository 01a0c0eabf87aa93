"""The options of `advnas search` from a file: strict, so that a misspelt one is not passed over."""

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import date, time
from pathlib import Path
from typing import Any

from advnas.arguments import nearest
from advnas.cli.commands import Search

_NOT_IN_FILES = {"config", "resume", "json", "plan", "diagnose"}
_COUNTS = {"epochs", "warmup", "retrain_epochs", "seed", "seeds", "jobs", "processes"}
KEYS = tuple(field.name for field in fields(Search) if field.name not in _NOT_IN_FILES)


def completed(search: Search, file: Path | None, options: Mapping[str, Any]) -> tuple[Search, dict[str, Any]]:
    """What was asked for before, and what a file adds to it: options of the command, and [options]."""
    if file is None:
        return search, dict(options)
    content = read(file)
    further = content.pop("options", {})
    given = {key: value for key, value in content.items() if getattr(search, key) in (None, ())}
    if "limit" in given:
        given["limit"] = tuple(given["limit"])
    if "folder" in given:
        given["folder"] = Path(given["folder"])
    return replace(search, **given), further | dict(options)


def written(search: Search, options: Mapping[str, Any]) -> str:
    """A file that asks for the same again."""
    values = {key: value for key in KEYS if key != "folder" and (value := getattr(search, key)) not in (None, ())}
    lines = [f"{key} = {_value(value)}" for key, value in values.items()]
    lines += ["", "[options]"] + [f"{_key(key)} = {_value(value)}" for key, value in options.items()]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {_value(own)}" for key, own in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # as TOML wants it


def _key(key: str) -> str:
    return _value(key)


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
        close = nearest(key, [*KEYS, "options"])
        known = f"Did you mean {close!r}?" if close else f"Known are {', '.join([*KEYS, 'options'])}."
        raise ValueError(f"{path}: there is no {key!r}. {known}")
    elif key in _COUNTS:
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"{path}: {key} must be a whole number, got {value!r}.")
    elif key == "limit":
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise ValueError(f'{path}: limit must be a list of texts like ["parameters=100k"], got {value!r}.')
    elif not isinstance(value, str):
        raise ValueError(f"{path}: {key} must be a text in quotes, got {value!r}.")
