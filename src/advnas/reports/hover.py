"""Values that a figure tells where the pointer rests: SVG titles, which browsers show without any script."""

import html
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from advnas.reports.literal import spoken

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

_CELL = 8.0  # points: values that are closer than this share a place, so that a long curve has few of them


class _Value(NamedTuple):
    """A value of a line. left, top: where it is drawn, in points from the corner."""

    left: float
    top: float
    moment: str
    words: str


def with_values(svg: str, figure: "Figure") -> str:
    """Put an invisible circle with a title over the values of every line that has a label.

    Args:
        svg: the figure as it was saved, with the layout that it has now.
        figure: whose lines are told.
    """
    places: dict[tuple[int, int, int], list[_Value]] = {}
    for number, axes in enumerate(figure.axes):
        for value in _values(figure, axes):
            cell = (number, round(value.left / _CELL), round(value.top / _CELL))
            places.setdefault(cell, []).append(value)
    circles = "".join(map(_circle, places.values()))
    body, end, _ = svg.rpartition("</svg>")
    return f'{body}<g class="values" fill="#808080" fill-opacity="0">\n{circles}</g>\n{end}\n'


def inline(svg: str, name: str, label: str) -> str:
    """Make an SVG of matplotlib a part of an HTML page.

    Args:
        svg: as it was saved.
        name: of the figure, a word. Identifiers begin with it, as those of figures would meet in one page.
        label: says what is to be seen to whoever cannot see it.
    """
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", body).replace("xlink:href=", "href=")
    inside = body[body.index(">") + 1 :]
    view = re.search(r'viewBox="[^"]*"', body)
    assert view is not None  # matplotlib always says how large its drawing is
    return f'<svg class="plot" {view.group()} role="img" aria-label="{html.escape(label)}">{inside}'


def _values(figure: "Figure", axes: "Axes") -> Iterator[_Value]:
    labels = _label(axes.get_xlabel() or figure.get_supxlabel()), axes.get_ylabel() or figure.get_supylabel()
    for line in axes.lines:
        # Lines across the whole axes are for orientation and have no values.
        if (
            axes.get_visible()
            and line.get_transform() is axes.transData
            and not str(line.get_label()).startswith("_")
        ):
            yield from _values_of(figure, axes, line, labels)


def _values_of(figure: "Figure", axes: "Axes", line: "Line2D", labels: tuple[str, str]) -> Iterator[_Value]:
    points, name = np.asarray(line.get_xydata(), dtype=float), spoken(str(line.get_label()))
    scale, shown = 72 / figure.dpi, axes.bbox.padded(1)
    for point, (left, bottom) in zip(points, axes.transData.transform(points), strict=True):
        if shown.contains(left, bottom):
            top = figure.bbox.height - bottom
            # Without a label the height tells a seed from another, and nothing more.
            moment, value = (f"{labels[0]} {point[0]:.6g}", point[1]) if labels[1] else ("", point[0])
            yield _Value(left * scale, top * scale, moment, f"{name}: {value:.5g}")


def _circle(values: Sequence[_Value]) -> str:
    left, top, moment, _ = values[0]
    words = dict.fromkeys(value.words for value in values if value.moment == moment)
    told = html.escape("\n".join([moment, *words] if moment else words))
    return f'<circle cx="{left:.1f}" cy="{top:.1f}" r="6"><title>{told}</title></circle>\n'


def _label(text: str) -> str:
    """Without the remark behind a comma."""
    return text.partition(",")[0]
