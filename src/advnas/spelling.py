"""What somebody may have meant by a name that is not there."""

import difflib
from collections.abc import Iterable


def nearest(word: object, known: Iterable[str]) -> str | None:
    """The known name that is most like a word, if any is; capitals make no difference."""
    names = {name.lower(): name for name in known}
    close = difflib.get_close_matches(str(word).lower(), names, n=1, cutoff=0.5)
    return names[close[0]] if close else None


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """A question to put behind a word that is not known, in brackets; nothing if no name is like it."""
    close = nearest(word, known)
    return f" (did you mean {close!r}?)" if close else ""
