"""Where data lie that do not come with the package."""

import os
from pathlib import Path


def data_folder(given: Path | None = None) -> Path:
    """The folder of all data: the given one, else that of ADVNAS_DATA, else advnas in the user's cache."""
    if given is not None:
        return given
    if named := os.environ.get("ADVNAS_DATA"):
        return Path(named).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "advnas"
