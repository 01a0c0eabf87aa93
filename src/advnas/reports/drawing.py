"""What all figures of a report share: their size, their legends, and their files."""

import io
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from advnas import strategies
from advnas.records.files import write_atomically
from advnas.reports.curves import Look, look
from advnas.reports.hover import with_values
from advnas.reports.literal import literal

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

SIZE = (6.4, 4.6)  # so narrow that their text can still be read on a telephone
_LETTERS = 72  # that a line of a legend has room for
_HANDLE = 10  # letters: what a sign and its distances take
MARKERS = "osD^vPXh<>d"


class Drawing(NamedTuple):
    """A figure and its words. name: of its files. caption: says what is to be seen to whoever cannot see it."""

    name: str
    title: str
    caption: str
    figure: "Figure"


def save(drawing: Drawing, folder: Path) -> list[Path]:
    """PNG and SVG. The SVG of equal data is equal to the byte: no date, no random names. It tells its values."""
    paths = [folder / f"{drawing.name}.png", folder / f"{drawing.name}.svg"]
    text = io.StringIO()
    with drawing_svg():
        drawing.figure.savefig(paths[0], dpi=150)
        drawing.figure.set_layout_engine("none")  # finding the places took longer than drawing: keep them
        drawing.figure.savefig(text, format="svg", metadata={"Date": None})
    write_atomically(paths[1], with_values(text.getvalue(), drawing.figure))
    return paths


def drawing_svg() -> AbstractContextManager[None]:
    """Write equal drawings as equal files, and letters as text: outlines make files large, and cannot be copied."""
    from matplotlib import rc_context

    return rc_context({"svg.hashsalt": "advnas", "svg.fonttype": "none"})


def draw_dot(axes: "Axes", strategy: str, seed: int, place: tuple[float, float], marker: str = "o") -> "Line2D":
    """Draw what one run found. It is a line of its own, so that it can tell its seed.

    Dots are opaque, since greys would vanish where the page is dark; their edges tell those that overlap apart.
    """
    label, color = f"{strategy}, seed {seed}", look_of(strategy).color
    (dot,) = axes.plot(*place, marker, color=color, markersize=8, mew=0.8, mec="white", label=label)
    return dot


def finish(axes: "Axes", label: str) -> None:
    """Name the horizontal axis, and leave out what only frames."""
    axes.set_xlabel(literal(label))
    axes.grid(alpha=0.25)
    if label.startswith("epoch"):
        axes.locator_params(axis="x", integer=True)
    axes.spines[["top", "right"]].set_visible(False)


def legend(figure: "Figure", *panels: "Axes", above: bool = False) -> None:
    """Put one legend of some panels below all of them, or above; each label comes once."""
    handles = {
        label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    legend_of(figure, handles, above=above)


def legend_of(figure: "Figure", handles: Mapping[str, "Artist"], *, above: bool = False) -> None:
    """Put a legend below or above all panels: what is drawn, by its name."""
    columns = max(1, min(len(handles), _LETTERS // (_HANDLE + max(map(len, handles), default=0))))
    place: Literal["outside upper center", "outside lower center"]
    place = "outside upper center" if above else "outside lower center"
    figure.legend([*handles.values()], [*handles], loc=place, ncols=columns, frameon=False)


def look_of(name: str) -> Look:
    """How a strategy is drawn; one of somebody else's has a look too."""
    return look(name) if name in strategies.names() else Look("#333333", "-")
