import struct
import xml.etree.ElementTree as ElementTree

import pytest

from advnas.reports.drawing import SIZE, draw_dot, legend, save
from advnas.reports.figures import draw_study
from advnas.reports.study import read_study

figure = pytest.importorskip("matplotlib.figure")


def test_files_are_a_png_of_6_4_by_4_6_inches_and_an_svg_equal_to_the_byte(study_folder, tmp_path):
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
        png, svg = save(next(draw_study(read_study(study_folder), None)), folder)
    assert struct.unpack(">II", png.read_bytes()[16:24]) == (960, 690)
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    assert svg.read_bytes() == (folders[0] / svg.name).read_bytes()
    assert b"<dc:date>" not in svg.read_bytes()


def test_letters_are_text_that_can_be_searched_and_copied(study_folder, tmp_path):
    svg = save(next(draw_study(read_study(study_folder), None)), tmp_path)[1].read_text()
    assert ">random</text>" in svg


@pytest.mark.parametrize("names", [("advantage", "random"), [f"method {n}{n * '!'}" for n in range(8)]])
def test_a_legend_is_as_wide_as_its_figure_at_most(names):
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots()
    for name in names:
        axes.plot([0, 1], label=name)
    legend(figure, axes)
    figure.draw_without_rendering()
    assert figure.legends[0].get_window_extent().width <= figure.bbox.width


def test_dots_are_opaque_since_greys_would_vanish_on_a_dark_page():
    dot = draw_dot(figure.Figure().subplots(), "random", 0, (1.0, 2.0))
    assert dot.get_alpha() is None
    assert dot.get_markeredgecolor() == "white"
