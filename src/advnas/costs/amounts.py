"""Amounts as people write them: 100k parameters, 5ms, 2MB."""

import math
import re
from collections.abc import Mapping
from typing import Any

_COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
_UNITS: dict[str, dict[str, float]] = {
    "": _COUNTS,
    "ms": {"": 1.0, "us": 1e-3, "ms": 1.0, "s": 1e3},
    "bytes": {"": 1.0, "b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2**10, "mib": 2**20, "gib": 2**30},
}
_AMOUNT = re.compile(r"([-+]?[\d_,]*\.?\d+(?:e[-+]?\d+)?)\s*([^\d\s]*)", re.IGNORECASE)
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(,\d{3})+(?![\d,])")


def parse_amount(text: Any, name: str, unit: str, what: str = "limit") -> float:
    """Read an amount of a cost in the cost's own unit: "100k" of parameters is 100000, "5ms" of ms is 5.

    Commas separate thousands, as in "1,500,000".

    Args:
        text: what was written, or a number.
        name: of the cost, for messages.
        unit: of the cost.
        what: the amount is, for messages: a limit or a penalty.

    Raises:
        ValueError: it is no positive finite number with a unit that is known.
    """
    known = _UNITS.get(unit, {"": 1.0, unit.lower(): 1.0})
    match = _AMOUNT.fullmatch(str(text).strip())
    factor = known.get(match[2].lower()) if match else None
    if match is None or factor is None:
        endings = ", ".join(repr(ending) for ending in known if ending)
        raise ValueError(f"A {what} of {name} must be a number, alone or with {endings}, got {text!r}.")
    if "," in match[1] and not _THOUSANDS.match(match[1]):
        raise ValueError(
            f"A {what} of {name} must be a number whose commas separate thousands, as in 1,500,000, got {text!r}. "
            "Write a decimal point, as in 1.5."
        )
    amount = float(match[1].replace("_", "").replace(",", "")) * factor
    if not math.isfinite(amount) or amount <= 0:
        raise ValueError(f"A {what} of {name} must be a positive number, got {text!r}.")
    return amount


def split_limits(texts: Any) -> dict[str, str]:
    """Read name=amount from every text, such as "parameters=100k".

    Raises:
        ValueError: a text is of another form, or a name comes twice.
    """
    if isinstance(texts, Mapping):
        return {str(name): str(amount) for name, amount in texts.items()}
    found: dict[str, str] = {}
    for text in texts:
        name, equals, amount = (part.strip() for part in str(text).partition("="))
        if not (name and equals and amount) or name in found:
            again = " once" if name in found else ""
            raise ValueError(f"A limit must be given{again} as name=amount, such as parameters=100k, got {text!r}.")
        found[name] = amount
    return found
