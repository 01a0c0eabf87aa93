"""A study's results in one file: what was asked, what came out, and the machine and command that made it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Generic, TypeVar

import cattrs

from advnas.records.files import parse_json, write_atomically
from advnas.studies.study import Study

Settings = TypeVar("Settings")

_strict = cattrs.Converter(forbid_extra_keys=True)
# What comes of content that is of another form; cattrs asks anything at all for its keys.
_MISFITS = (ValueError, KeyError, TypeError, AttributeError, cattrs.BaseValidationError)


@dataclass(frozen=True)
class Results(Generic[Settings]):
    """rows[name]: whatever one method of the study yields, as plain numbers. provenance: how it was made."""

    settings: Settings
    rows: Mapping[str, list[Any]]
    provenance: Mapping[str, Mapping[str, str]]

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        content = {
            "settings": asdict(self.settings),  # type: ignore[call-overload]
            "provenance": {name: dict(made) for name, made in self.provenance.items()},
            "rows": dict(self.rows),
        }
        write_atomically(path, json.dumps(content) + "\n")


def load_results(path: Path, settings: Settings) -> Results[Settings]:
    """What a study with these settings has left at `path`; empty if nothing, an error if it was another study."""
    if not path.exists():
        return Results(settings, {}, {})
    try:
        content = parse_json(path.read_bytes(), str(path))
        saved = _strict.structure(content["settings"], type(settings))
        rows, provenance = dict(content["rows"]), dict(content["provenance"])
    except _MISFITS as error:
        raise ValueError(
            f"{path} is not a results file of this study ({type(error).__name__}). "
            "Give another --folder, or remove the file."
        ) from error
    _refuse_changes(path, saved, settings)
    return Results(settings, rows, provenance)


def claim_folder(folder: Path, study: Study) -> None:
    """Make a folder the study's own: write `study.json`, or refuse if another study has left its own there."""
    path = folder / "study.json"
    if not path.exists():
        _refuse_left_overs(folder)
        about = {"experiment": study.name, "title": study.title, "table": study.table}
        write_atomically(path, json.dumps(about | {"settings": asdict(study.settings)}, indent=1) + "\n")
        return
    found, saved = _read(path, type(study.settings))
    if found != study.name:
        raise ValueError(f"{folder} holds the study {found!r}, not {study.name!r}. Give another --folder.")
    _refuse_changes(path, saved, study.settings)


def _refuse_left_overs(folder: Path) -> None:
    """Runs of nobody knows which study would be taken for this one's, and be gone on with."""
    if any((*folder.glob("runs/*/run.json"), *folder.glob("warmup/*"))):
        raise ValueError(
            f"{folder} holds runs, and no study.json that says of which study. Give another --folder, or restore "
            "the file."
        )


def numbered_folder(base: Path) -> Path:
    """Return the first of base, base-2, base-3, ... that does not exist."""
    folder, number = base, 1
    while folder.exists():
        number += 1
        folder = base.with_name(f"{base.name}-{number}")
    return folder


def read_settings(folder: Path, kind: type[Settings]) -> Settings:
    """What a folder was claimed with."""
    return _read(folder / "study.json", kind)[1]


def _parse(path: Path) -> dict[str, Any]:
    try:
        return parse_json(path.read_bytes(), str(path))
    except ValueError as error:
        raise ValueError(f"{error} Restore the file, or give another --folder.") from error


def _read(path: Path, kind: type[Settings]) -> tuple[str, Settings]:
    content = _parse(path)
    try:
        return content["experiment"], _strict.structure(content["settings"], kind)
    except _MISFITS as error:
        raise ValueError(
            f"{path} is not that of this study ({type(error).__name__}). Give another --folder."
        ) from error


def _refuse_changes(path: Path, saved: Settings, settings: Settings) -> None:
    changed = [
        f"{field.name} is {getattr(settings, field.name)} now and was {getattr(saved, field.name)}"
        for field in fields(settings)  # type: ignore[arg-type]
        if getattr(settings, field.name) != getattr(saved, field.name)
    ]
    if changed:
        raise ValueError(f"{path} was made by other settings: {'; '.join(changed)}. Give another --folder.")
