"""What people pass: names and what they may have meant, builders by name, counts and sizes."""

import difflib
import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any


def nearest(word: object, known: Iterable[str]) -> str | None:
    """The known name that is most like a word, if any is; capitals make no difference."""
    names = {name.lower(): name for name in known}
    close = difflib.get_close_matches(str(word).lower(), names, n=1, cutoff=0.5)
    return names[close[0]] if close else None


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """A question to put behind a word that is not known, in brackets; nothing if no name is like it."""
    close = nearest(word, known)
    return f" (did you mean {close!r}?)" if close else ""


@dataclass(frozen=True)
class Builder:
    """An entry of a registry: a function that is imported when it is used.

    path: "module:function". summary: what it builds, in one line.
    """

    path: str
    summary: str

    def load(self) -> Callable[..., Any]:
        """Import the function."""
        module, _, name = self.path.partition(":")
        return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]

    def options(self) -> tuple[str, ...]:
        """Name the arguments that the function takes."""
        return tuple(inspect.signature(self.load()).parameters)


def find(kind: str, registry: Mapping[str, Any], name: str) -> Any:
    """Return the entry of a name.

    Args:
        kind: what the entries are, for messages: "space".
        registry: entries by name.
        name: what was asked for.

    Raises:
        ValueError: there is no such entry; the message says what may have been meant.
    """
    if name not in registry:
        raise ValueError(
            f"There is no {kind} {name!r}{did_you_mean(name, registry)}. Choose one of {', '.join(registry)}."
        )
    return registry[name]


def build(kind: str, registry: Mapping[str, Builder], name: str, options: Mapping[str, Any]) -> Any:
    """Build the entry of a name with options; ValueError where it has no such option.

    Args and Raises as in `find`.
    """
    builder: Builder = find(kind, registry, name)
    known = builder.options()
    for option in options:
        if option not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            meant = did_you_mean(option, known)
            raise ValueError(f"The {kind} {name!r} has no option {option!r}{meant}; {takes}.")
    return builder.load()(**options)


def check_count(name: str, value: int, *, least: int = 1) -> int:
    """A count that came from a person: a whole number, large enough."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        kind = "a positive integer" if least == 1 else f"an integer of at least {least}"
        raise ValueError(f"{name} must be {kind}, got {value!r}.")
    return value


_FACTORS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_FACTORS |= {f"{prefix}i": 2 ** (10 * power) for power, prefix in enumerate("KMGT", start=1)}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]i?)?B?\s*", re.IGNORECASE)


def parse_size(size: int | str) -> int:
    """A number of bytes: 2_000_000_000, "2GB", "512 MB" or "1.5GiB"."""
    match = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if match is not None:
        prefix = (match[2] or "").upper().replace("I", "i")
        count = int(float(match[1]) * _FACTORS[prefix])
    elif isinstance(size, int) and not isinstance(size, bool):
        count = size
    else:
        count = 0
    if count <= 0:
        raise ValueError(
            f"A memory budget must be a positive number of bytes, got {size!r}. Write for example '2GB', '512MB' "
            "or 2_000_000_000."
        )
    return count


def format_size(count: int) -> str:
    """A number of bytes for people: 1500000000 is '1.5 GB'."""
    for prefix in ("T", "G", "M", "K"):
        if count >= _FACTORS[prefix]:
            return f"{count / _FACTORS[prefix]:.3g} {prefix}B"
    return f"{count} bytes"
