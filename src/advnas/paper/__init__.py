"""The studies as data: the paper's toy regression, CIFAR-10, Penn Treebank, theorems and numbers, and one more."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from advnas.arguments import Builder


@dataclass(frozen=True)
class StudyBuilder(Builder):
    """A study that `advnas experiment` knows by name.

    path: of a function (preset, data_folder, **flags) that returns a `studies.study.Comparison`.
    presets: the settings to choose from, with their help; one is called laptop.
    flags: what can be switched on besides, with its help.
    """

    presets: Mapping[str, str]
    flags: Mapping[str, str] = field(default_factory=dict)


_OF_THE_PAPER = {
    "quick": "a smoke test, a minute",
    "laptop": "a faithful reduction, about an hour",
    "paper": "the appendix",
}

STUDIES: dict[str, StudyBuilder] = {
    "cifar10": StudyBuilder(
        "advnas.paper.cifar10:comparison",
        "The paper's main study: the NAS-Bench-201 cell on CIFAR-10, every strategy from the same warm weights.",
        _OF_THE_PAPER,
        {"zero": "Put the zero operation `none` among the candidates."},
    ),
    "ptb": StudyBuilder(
        "advnas.paper.ptb:comparison",
        "The paper's recurrent cell on Penn Treebank: search, retrain what was found, measure its perplexity.",
        _OF_THE_PAPER,
        {
            "normalise": "Normalise the nodes of the cell in the search, as DARTS does; not in what is retrained.",
            "half_warmup": "Keep theta fixed in the first half of the search.",
        },
    ),
    "macro": StudyBuilder(
        "advnas.paper.macro:comparison",
        "Choices in series: the eight layers of NAS-Bench-Macro on CIFAR-10, every sparse strategy.",
        {
            "quick": "a smoke test, seconds",
            "laptop": "8 channels and 16 pixels, 10 seeds, about an hour",
            "full": "the benchmark's network and all images",
        },
    ),
}
"""Strategies x seeds."""

SEARCHES: dict[str, Builder] = {
    "penn_treebank": Builder("advnas.paper.ptb:search_study", "the recurrent cell, searched as in the paper"),
}
"""Tasks whose search carries more from step to step than a `Task` can say: each has a study of its own."""
