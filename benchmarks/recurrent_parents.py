"""The parents of the Penn Treebank study in parent_ranking.py, and changes that might let them know more."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from advnas import Architecture
from advnas.paper import ptb
from advnas.randomness import seed_of, seeded
from advnas.records.provenance import provenance
from advnas.spaces.recurrent_cell import Activation, RecurrentCellNetwork
from advnas.tasks import penn_treebank
from advnas.tasks.data_folder import data_folder
from kept import kept

Change = Callable[[RecurrentCellNetwork], None]


def unchanged(network: RecurrentCellNetwork) -> None:
    """Leave the network of the study as it is."""


def own_weights(network: RecurrentCellNetwork) -> None:
    """Give every activation of an edge a W^h of its own, where the study has one for all of them.

    An edge asks its first active operation for the matrix, so this is right where one runs, and not with rivals.
    """
    for module in network.cell.modules():
        if isinstance(module, Activation):
            module.weight = nn.Parameter(torch.empty_like(module.weight))
            module.reset_parameters()


@dataclass(frozen=True)
class RecurrentParent(ptb.Ptb):
    """The study with a changed network, as a parent only: nothing is retrained with it."""

    change: Change = unchanged

    def make_network(self, seed: int, *, normalised: bool = False) -> RecurrentCellNetwork:
        """Build the network of the study and change it."""
        network = super().make_network(seed, normalised=normalised)
        with seeded(seed_of(seed, 1)):
            self.change(network)
        return network

    def texts(self, data: ptb.PtbText) -> dict[str, ptb.PtbText]:
        """What cells can be judged on: the text of the weights, and one that they do not see."""
        held_out = penn_treebank.Segments(
            penn_treebank.read_once(self.data_folder).valid, batch=self.settings.batch, length=self.settings.length
        )
        return {"training text": data, "held-out text": ptb.PtbText(held_out, held_out)}


def study_with(change: Change = unchanged, **settings: Any) -> RecurrentParent:
    """The study of the laptop preset with a changed network or other settings."""
    return RecurrentParent(replace(ptb.PRESETS["laptop"], **settings), data_folder(None), change)


def alone(architecture: Architecture, seed: int, folder: Path) -> float:
    """Validation perplexity of a cell, retrained as the study does; kept in the folder, as it takes longest."""
    name = "-".join(architecture.values())
    study = ptb.Ptb(ptb.PRESETS["laptop"], data_folder(None))

    def train() -> dict[str, Any]:
        search, where = study.make_search("random", seed), folder / "retrained" / f"{name}-{seed}"
        return study.evaluate(("argmax", architecture), seed, search, where) | {"source": provenance()}

    return float(kept(folder / f"alone-{name}-{seed}.json", train)["valid_perplexity"])
