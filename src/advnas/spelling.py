"""What somebody may have meant by a name that is not there."""

import difflib
from collections.abc import Iterable


def nearest(word: object, known: Iterable[str]) -> str | None:
    """The known name that is most like a word, if any is."""
    close = difflib.get_close_matches(str(word), list(known), n=1, cutoff=0.5)
    return close[0] if close else None
