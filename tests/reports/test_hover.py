import re
import xml.etree.ElementTree as ElementTree

import pytest

from advnas.reports.hover import inline

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure

from advnas.reports.drawing import Drawing, save
from advnas.reports.literal import literal

SVG = "{http://www.w3.org/2000/svg}"


def drawn(figure, folder):
    """The saved SVG as a text."""
    return save(Drawing("figure", "title", "caption", figure), folder)[1].read_text()


def told(svg):
    """What is told where: (left, top, title)."""
    circles = ElementTree.fromstring(svg).iter(f"{SVG}circle")
    return [(float(one.get("cx")), float(one.get("cy")), one.find(f"{SVG}title").text) for one in circles]


def figure_of(*lines, xlabel="epoch, warm-up included", ylabel="entropy"):
    """Axes from 0 to 10 that fill a figure of 5 x 2 inches. lines: (label, places, values)."""
    figure = Figure(figsize=(5, 2))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, 10), ylim=(0, 10), xlabel=xlabel, ylabel=ylabel)
    for label, places, values in lines:
        axes.plot(places, values, label=label)
    return figure


def test_values_are_told_where_they_are_drawn(tmp_path):
    svg = drawn(figure_of(("darts", [2, 5], [5, 0.123456])), tmp_path)
    left, right = told(svg)
    assert left == (72.0, 72.0, "epoch 2\ndarts: 5")
    assert right == (180.0, pytest.approx(144 - 0.123456 * 14.4, abs=0.06), "epoch 5\ndarts: 0.12346")


def test_values_that_coincide_are_told_together(tmp_path):
    svg = drawn(figure_of(("darts", [2], [5]), ("snas", [2], [5.01])), tmp_path)
    assert [words for _, _, words in told(svg)] == ["epoch 2\ndarts: 5\nsnas: 5.01"]


def test_a_long_curve_has_few_values_to_meet(tmp_path):
    steps = [number / 1000 for number in range(10_000)]
    found = told(drawn(figure_of(("darts", steps, [5] * len(steps))), tmp_path))
    assert len(found) == 46  # one per 8 points of 360
    assert all(words.count("darts") == 1 for _, _, words in found)


def test_what_is_cut_off_or_has_no_name_or_no_values_tells_nothing(tmp_path):
    figure = figure_of(("darts", [2, 50], [5, 5]), ("_nobody", [3], [3]))
    figure.axes[0].axhline(5, label="limit")
    assert [words for _, _, words in told(drawn(figure, tmp_path))] == ["epoch 2\ndarts: 5"]


def test_a_height_without_a_name_is_not_told(tmp_path):
    figure = figure_of(("darts, seed 1", [2], [5]), xlabel="test loss", ylabel="")
    assert [words for _, _, words in told(drawn(figure, tmp_path))] == ["darts, seed 1: 2"]


@pytest.mark.parametrize("name", ['<script>"&', "$a$", "_hidden", "a--b"])
def test_names_are_told_as_they_are(name, tmp_path):
    svg = drawn(figure_of((literal(name), [2], [5])), tmp_path)
    assert told(svg)[0][2] == f"epoch 2\n{name}: 5"
    assert "<script" not in inline(svg, "one", name)


def test_identifiers_of_two_figures_do_not_meet(tmp_path):
    svg = drawn(figure_of(("darts", [2, 5], [5, 3])), tmp_path)
    pages = [inline(svg, name, 'a "label"') for name in ("one", "two")]
    identifiers = [set(re.findall(r'\bid="([^"]*)"', page)) for page in pages]
    assert len(identifiers[0]) > 10
    assert not identifiers[0] & identifiers[1]
    for own, page in zip(identifiers, pages, strict=True):
        assert set(re.findall(r'(?:href="#|url\(#)([^")]*)', page)) <= own
        assert page.startswith(
            '<svg class="plot" viewBox="0 0 360 144" role="img" aria-label="a &quot;label&quot;">'
        )
        assert page.count("<title>") == 2
        assert "http" not in page
