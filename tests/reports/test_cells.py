import itertools
import struct
import xml.etree.ElementTree as ElementTree

import pytest

from advnas.reports.cells import cell_figure, draw_cell, operation_color, operation_colors, save_cell

pytest.importorskip("matplotlib")

CELL = {
    "0->1": "nor_conv_3x3",
    "0->2": "skip_connect",
    "1->2": "avg_pool_3x3",
    "0->3": "none",
    "1->3": "nor_conv_1x1",
    "2->3": "nor_conv_3x3",
}


def complete_cell(nodes, operation):
    return {f"{source}->{target}": operation for target in range(1, nodes) for source in range(target)}


def texts(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def test_a_cell_is_an_svg_with_a_ground_of_its_own():
    text = draw_cell(CELL)
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert "fill: #ffffff" in text


def test_the_same_cell_is_the_same_drawing():
    assert draw_cell(CELL) == draw_cell(dict(CELL))
    assert "<dc:date>" not in draw_cell(CELL)


def test_picture_and_drawing_have_the_same_shape(tmp_path):
    png, svg = save_cell(CELL, tmp_path / "cell.of.run-0")
    assert (png.name, svg.name) == ("cell.of.run-0.png", "cell.of.run-0.svg")
    width, height = struct.unpack(">II", png.read_bytes()[16:24])
    box = [float(number) for number in ElementTree.parse(svg).getroot().get("viewBox").split()]
    assert width / height == pytest.approx(box[2] / box[3], rel=0.01)


def test_every_operation_and_every_node_is_written():
    assert sorted(texts(cell_figure(CELL))) == sorted([*CELL.values(), "0", "1", "2", "3"])


def test_zero_operations_are_dotted_and_the_others_are_not():
    arrows = cell_figure(CELL).axes[0].patches[: len(CELL)]
    assert [arrow.get_linestyle() for arrow in arrows] == ["-", "-", "-", ":", "-", "-"]


@pytest.mark.parametrize(
    "cell",
    [
        CELL,
        dict.fromkeys(CELL, "none"),
        complete_cell(7, "nor_conv_3x3"),
        complete_cell(5, "an_operation_with_a_very_long_name"),
        {"input->output": "tanh"},
        {"a->b": "WWWWWWWWWWWWWWWW", "b->c": "WWWWWWWWWWWWWWWW", "a->c": "WWWWWWWWWWWWWWWW"},
    ],
)
def test_no_text_overlaps_another_or_leaves_the_drawing(cell):
    figure = cell_figure(cell)
    figure.draw_without_rendering()
    operations = [text for text in figure.axes[0].texts if text.get_text() in cell.values()]
    boxes = [text.get_window_extent() for text in operations]
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
    assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in boxes)
    assert all(figure.bbox.y0 <= box.y0 and box.y1 <= figure.bbox.y1 for box in boxes)


def test_nodes_stand_in_the_order_of_the_arrows_whatever_their_names():
    figure = cell_figure({"z->a": "conv", "a->m": "conv", "z->m": "conv"})
    assert [text for text in texts(figure) if text != "conv"] == ["z", "a", "m"]


def test_ten_comes_after_two():
    figure = cell_figure({f"{source}->11": "conv" for source in ("10", "2", "1")})
    assert [text for text in texts(figure) if text != "conv"] == ["1", "2", "10", "11"]


def test_operations_keep_their_colour():
    assert operation_color("nor_conv_3x3") == operation_color("nor_conv_3x3") != operation_color("nor_conv_1x1")
    assert operation_color("an operation nobody has heard of").startswith("#")


@pytest.mark.parametrize("name", ["edge", "0->", "->1"])
def test_decisions_must_say_where_they_lead(name):
    with pytest.raises(ValueError, match=r"cannot be drawn.*like '0->1'"):
        draw_cell({name: "conv"})


def test_arrows_must_not_go_in_a_circle():
    with pytest.raises(ValueError, match="go in a circle"):
        draw_cell({"0->1": "conv", "1->0": "conv"})


def test_a_cell_has_decisions():
    with pytest.raises(ValueError, match="without decisions"):
        draw_cell({})


def test_the_zero_of_every_space_is_dotted():
    arrows = cell_figure({"0->1": "zero", "0->2": "none", "1->2": "identity"}).axes[0].patches[:3]
    assert [arrow.get_linestyle() for arrow in arrows] == [":", ":", "-"]
    assert operation_color("zero") == operation_color("none")


def test_activations_have_a_colour_each():
    assert len({operation_color(name) for name in ("relu", "tanh", "sigmoid", "identity", "zero")}) == 5


@pytest.mark.parametrize(
    "names", [["skip", "linear", "tanh"], ["relu", "nor_conv_3x3", "skip", "mlp"], ["identity", "skip_connect"]]
)
def test_no_operation_takes_the_colour_of_a_named_one(names):
    assert len(set(operation_colors(names).values())) == len(names)


def test_operations_of_one_figure_have_colours_of_their_own():
    names = ["none", "skip_connect", *(f"operation {number}" for number in range(8))]
    colors = operation_colors(names * 2)
    assert list(colors) == names
    assert len(set(colors.values())) == len(names)
    assert colors["none"] == operation_color("none")
    assert len(operation_colors(map(str, range(40)))) == 40  # more than there are colours
