import struct
import xml.etree.ElementTree as ElementTree

import pytest

from advnas import strategies
from advnas.reports.curves import draw_toy, look

pytest.importorskip("matplotlib")


def curve(last=20):
    iterations = list(range(0, last + 1, 10))
    falling = [1 / (1 + iteration) for iteration in iterations]
    return {
        "iterations": iterations,
        "median": falling,
        "q25": [0.5 * value for value in falling],
        "q75": [2 * value for value in falling],
        "final": [0.0, 1.0],
    }


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return draw_toy({name: curve() for name in strategies.names()}, tmp_path_factory.mktemp("figure"))


def test_a_picture_and_a_drawing_are_written(paths):
    assert [path.name for path in paths] == ["toy.png", "toy.svg"]
    assert [path.name for path in sorted(paths[0].parent.iterdir())] == ["toy.png", "toy.svg"]


def test_the_picture_is_a_png_of_10_by_4_2_inches_at_150_dots(paths):
    content = paths[0].read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", content[16:24]) == (1500, 630)
    assert len(content) > 10_000


def test_the_drawing_is_an_svg_without_a_date(paths):
    text = paths[1].read_text()
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert "<dc:date>" not in text


@pytest.mark.parametrize("last", [0, 10, 1000])
def test_short_and_long_searches_can_be_drawn(last, tmp_path):
    assert all(path.stat().st_size for path in draw_toy({"advantage": curve(last)}, tmp_path))


def test_every_strategy_has_a_color_of_its_own():
    assert len({look(name).color for name in strategies.names()}) == len(strategies.names())


@pytest.mark.parametrize(
    ("name", "line", "width"),
    [("advantage", "-", 2.4), ("gdas", "-", 1.4), ("darts", "--", 1.4), ("random", ":", 1.4)],
)
def test_the_line_tells_what_kind_of_strategy_it_is(name, line, width):
    assert look(name)[1:] == (line, width)
