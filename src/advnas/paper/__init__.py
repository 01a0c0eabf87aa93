"""The paper's studies as data: the toy regression, CIFAR-10, Penn Treebank, the theorems, and its numbers."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from advnas.arguments import Builder


@dataclass(frozen=True)
class StudyBuilder(Builder):
    """A study that `advnas experiment` knows by name.

    path: of a function (preset, data_folder, **flags) that returns a `studies.study.Comparison`.
    flags: what can be switched on besides, with its help.
    """

    flags: Mapping[str, str] = field(default_factory=dict)


STUDIES: dict[str, StudyBuilder] = {
    "cifar10": StudyBuilder(
        "advnas.paper.cifar10:comparison",
        "The paper's main study: the NAS-Bench-201 cell on CIFAR-10, every strategy from the same warm weights.",
        {"zero": "Put the zero operation `none` among the candidates."},
    ),
    "ptb": StudyBuilder(
        "advnas.paper.ptb:comparison",
        "The paper's recurrent cell on Penn Treebank: search, retrain what was found, measure its perplexity.",
    ),
}
"""Strategies x seeds, with presets `quick`, `laptop` and `paper`."""

SEARCHES: dict[str, Builder] = {
    "penn_treebank": Builder("advnas.paper.ptb:search_study", "the recurrent cell, searched as in the paper"),
}
"""Tasks whose search carries more from step to step than a `Task` can say: each has a study of its own."""
