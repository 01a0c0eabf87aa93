"""Figures: how the answer of a search improves while it runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from advnas import strategies


class Look(NamedTuple):
    """How a strategy is drawn, the same in every figure."""

    color: str
    line: str
    width: float = 1.4


_COLORS = {
    "contrast": "#111111",
    "exact_contrast": "#6c757d",
    "advantage": "#c1121f",
    "exact_advantage": "#f4a261",
    "reinforce": "#6a4c93",
    "enas": "#b185db",
    "parsec": "#e573b5",
    "proxyless": "#8a5a2b",
    "gdas": "#2a9d3f",
    "darts": "#1d4e89",
    "snas": "#3a86c8",
    "nasp": "#00a6a6",
    "random": "#64748b",
    "ranked_random": "#334155",
}
_THICK = ("advantage", "contrast")


def look(name: str) -> Look:
    """Sparse strategies solid, dense ones dashed, baselines dotted, the paper's own and the default thick."""
    color = _COLORS.get(name, "#333333")
    if name in strategies.baselines():
        return Look(color, ":")
    dense = strategies.strategy_type(name).architecture_operations is None
    return Look(color, "--" if dense else "-", 2.4 if name in _THICK else 1.4)


def draw_toy(curves: Mapping[str, Mapping[str, Sequence[Any]]], folder: Path) -> list[Path]:
    """Median and quartiles over the trials: the first 600 iterations, as in the paper, and the whole run."""
    from matplotlib.figure import Figure  # an optional dependency: the `reports` extra

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    beginning, whole = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    for name, curve in curves.items():
        color, line, width = look(name)
        for axes in (beginning, whole):
            axes.fill_between(curve["iterations"], curve["q25"], curve["q75"], color=color, alpha=0.12, lw=0)
            axes.plot(curve["iterations"], curve["median"], line, color=color, lw=width, label=name)
    last = max(curve["iterations"][-1] for curve in curves.values())
    for axes, title, end in ((beginning, "the beginning", min(600, last)), (whole, "the whole search", last)):
        axes.set(xlim=(0, max(1, end)), xlabel="iteration", title=title)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    beginning.set(ylim=(0, None), ylabel="test loss of the answer x 100")
    whole.legend(loc="upper right", ncols=2, frameon=False, fontsize=8)
    paths = [folder / "toy.png", folder / "toy.svg"]
    for path in paths:
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    return paths
