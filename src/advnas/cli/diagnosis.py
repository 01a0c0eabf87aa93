"""`advnas search --diagnose`: do the shared weights rank architectures as training alone does?"""

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from advnas.studies.study import Study

FILE = "agreement.json"


def check_diagnosable(study: "Study", seed: int) -> None:
    """Raise now what would otherwise be said after the search."""
    from advnas.studies.own_network import OwnNetworkStudy

    if not isinstance(study, OwnNetworkStudy):
        raise ValueError(f"The task {study.name} cannot be diagnosed. Leave out --diagnose.")
    study.check_diagnosable(seed)


def diagnose(study: "Study", seed: int, folder: Path) -> None:
    """Train a few architectures alone and leave in the folder what that shows; nothing if it was done before.

    The shared weights are those of a baseline, which were trained by uniform draws to the end.
    """
    from functools import partial

    from advnas import strategies
    from advnas.records.files import write_atomically
    from advnas.studies.own_network import OwnNetworkStudy, load_searched
    from advnas.studies.run import run_folder

    assert isinstance(study, OwnNetworkStudy)
    if (folder / FILE).exists():
        return
    run = run_folder(folder, strategies.baselines()[0], seed)
    found = study.diagnose(seed, partial(load_searched, run))
    told = {"seed": seed, "text": str(found), "good": found.agrees, **found.to_json()}
    write_atomically(folder / FILE, json.dumps(told, indent=1) + "\n")
