"""Cells as graphs: nodes on a line, one arrow per decision, in the colour of its operation."""

import io
import zlib
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from advnas.reports.drawing import drawing_svg
from advnas.reports.literal import literal
from advnas.reports.study import ZERO_OPERATIONS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Operations of different spaces may share a colour: they never meet in a figure.
_COLORS = {
    **dict.fromkeys(ZERO_OPERATIONS, "#a3abb8"),
    "skip_connect": "#1d4e89",
    "nor_conv_1x1": "#d1720b",
    "nor_conv_3x3": "#c1121f",
    "avg_pool_3x3": "#2a7d3f",
    "max_pool_3x3": "#7fa327",
    "sep_conv_3x3": "#8f1f63",
    "sep_conv_5x5": "#d1569a",
    "dil_conv_3x3": "#5b3f8c",
    "dil_conv_5x5": "#8d6cc4",
    "relu": "#c1121f",
    "tanh": "#d1720b",
    "sigmoid": "#2a7d3f",
    "identity": "#1d4e89",
}
_COLORS_OF_OTHERS = (
    *("#00797a", "#8a5a2b", "#4a5a00", "#5b6b8c", "#9c4a4a", "#c1121f"),
    *("#1d4e89", "#d1720b", "#8f1f63", "#7fa327", "#8d6cc4", "#d1569a"),
)

# Inches, and points for the text.
_TEXT = 9.5
_LINE = 1.5 * _TEXT / 72
_RADIUS = 0.16
_GAP = 0.3
_NARROWEST = 0.9  # about nor_conv_3x3: cells of short names are drawn as wide, to stand side by side


class Edge(NamedTuple):
    """A decision as an arrow. span: how many places further its target is."""

    source: int
    target: int
    operation: str

    @property
    def span(self) -> int:
        """1 for neighbours, which are joined by a straight arrow."""
        return self.target - self.source

    @property
    def peak(self) -> float:
        """Height of the arc. Arcs of one span share a height and no two spans do, so their names cannot meet."""
        height = 0.75 * (self.span // 2)
        return 0.0 if self.span == 1 else height if self.span % 2 == 0 else -height


def operation_color(operation: str) -> str:
    """The colour of an operation, the same in every figure."""
    return _COLORS.get(operation) or _COLORS_OF_OTHERS[zlib.crc32(operation.encode()) % len(_COLORS_OF_OTHERS)]


def operation_colors(operations: Iterable[str]) -> dict[str, str]:
    """The colours of the operations of one figure, all different as long as there are enough."""
    names = list(dict.fromkeys(operations))
    found: dict[str, str] = {}
    for operation in sorted(names, key=lambda name: name not in _COLORS):  # others take what these leave
        first = operation_color(operation)
        free = [color for color in _COLORS_OF_OTHERS if color not in found.values()]
        found[operation] = free[0] if first in found.values() and free else first
    return {name: found[name] for name in names}


def is_cell(architecture: Mapping[str, str]) -> bool:
    """Whether its decisions are the arrows of a graph, as their names tell, so that it can be drawn."""
    try:
        _graph(architecture)
    except ValueError:
        return False
    return True


def draw_cell(architecture: Mapping[str, str]) -> str:
    """An SVG on a white ground of its own. The names of the decisions, "source->target", give the graph."""
    text = io.StringIO()
    _save(cell_figure(architecture), text, "svg")
    return text.getvalue()


def save_cell(architecture: Mapping[str, str], path: Path) -> list[Path]:
    """The same drawing as PATH.png and PATH.svg."""
    figure = cell_figure(architecture)
    paths = [path.with_name(f"{path.name}.{kind}") for kind in ("png", "svg")]
    for target in paths:
        _save(figure, target, target.suffix[1:])
    return paths


def cell_figure(architecture: Mapping[str, str]) -> "Figure":
    """One unit of the axes is one inch, so what fits at one size fits at all."""
    from matplotlib.figure import Figure

    nodes, edges = _graph(architecture)
    spacing = 2 * _RADIUS + _GAP + max(_NARROWEST, *map(_width, architecture.values()))
    peaks = [edge.peak for edge in edges]
    left, right = -_RADIUS - 0.15, spacing * (len(nodes) - 1) + _RADIUS + 0.15
    bottom, top = min(-_RADIUS, *peaks) - _LINE - 0.05, max(_RADIUS, *peaks) + _LINE + 0.05
    figure = Figure(figsize=(right - left, top - bottom), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1), xlim=(left, right), ylim=(bottom, top))
    axes.axis("off")
    for edge in edges:
        _draw_edge(axes, edge, spacing)
    for place, node in enumerate(nodes):
        _draw_node(axes, node, place * spacing)
    return figure


def _width(operation: str) -> float:
    from matplotlib.textpath import TextPath

    return float(TextPath((0, 0), operation, size=_TEXT).get_extents().width) / 72


def _graph(architecture: Mapping[str, str]) -> tuple[list[str], list[Edge]]:
    """Nodes such that every arrow points to the right, and the arrows."""
    ends = {decision: _ends(decision) for decision in architecture}
    depth = _depths(list(ends.values()), architecture)
    nodes = sorted(depth, key=lambda node: (depth[node], len(node), node))
    place = {node: index for index, node in enumerate(nodes)}
    edges = [Edge(place[source], place[target], architecture[name]) for name, (source, target) in ends.items()]
    return nodes, edges


def _ends(decision: str) -> tuple[str, str]:
    source, arrow, target = decision.partition("->")
    if not (source and arrow and target):
        raise ValueError(
            f"The decision {decision!r} cannot be drawn: its name does not say from which node to which. "
            "Name the decisions of a cell like '0->1'."
        )
    return source, target


def _depths(ends: list[tuple[str, str]], architecture: Mapping[str, str]) -> dict[str, int]:
    """The longest way to every node."""
    if not ends:
        raise ValueError(
            "A cell without decisions has no graph to draw. Give an architecture like {'0->1': 'conv'}."
        )
    before: dict[str, list[str]] = {}
    for source, target in ends:
        before.setdefault(target, []).append(source)
    depth: dict[str, int] = {}
    try:
        for node in TopologicalSorter(before).static_order():
            depth[node] = 1 + max((depth[source] for source in before.get(node, [])), default=-1)
    except CycleError as error:
        raise ValueError(
            f"{dict(architecture)!r} is not a cell: its arrows go in a circle ({' -> '.join(error.args[1])}). "
            "Give decisions whose arrows all point forward."
        ) from error
    return depth


def _draw_edge(axes: "Axes", edge: Edge, spacing: float) -> None:
    from matplotlib.patches import FancyArrowPatch

    start, end = edge.source * spacing, edge.target * spacing
    color, zero = operation_color(edge.operation), edge.operation in ZERO_OPERATIONS
    axes.add_patch(
        FancyArrowPatch(
            (start, 0),
            (end, 0),
            # arc3 lifts the middle by half of rad times the distance, to the right of the way for positive rad.
            connectionstyle=f"arc3,rad={-2 * edge.peak / (end - start)}",
            arrowstyle="-|>",
            mutation_scale=11,
            shrinkA=72 * _RADIUS,
            shrinkB=72 * _RADIUS,
            color=color,
            linewidth=1.1 if zero else 1.9,
            linestyle=":" if zero else "-",
            alpha=0.75 if zero else 1,
        )
    )
    below = edge.peak < 0
    axes.text(
        (start + end) / 2,
        edge.peak + (-0.06 if below else 0.06),
        literal(edge.operation),
        ha="center",
        va="top" if below else "bottom",
        size=_TEXT,
        # The pale of a dotted arrow would be too little contrast for letters.
        color="#6b7484" if zero else color,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},  # an arc of a larger cell may pass behind
    )


def _draw_node(axes: "Axes", node: str, place: float) -> None:
    from matplotlib.patches import Circle

    axes.add_patch(Circle((place, 0), _RADIUS, facecolor="#eef1f5", edgecolor="#333333", linewidth=1.2, zorder=3))
    axes.text(place, 0, literal(node), ha="center", va="center_baseline", size=_TEXT, color="#222222", zorder=4)


def _save(figure: "Figure", target: "Path | io.StringIO", kind: str) -> None:
    with drawing_svg():
        figure.savefig(target, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
