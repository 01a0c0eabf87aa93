import struct
import xml.etree.ElementTree as ElementTree

import pytest

from advnas.reports.drawing import save
from advnas.reports.figures import draw_study
from advnas.reports.study import read_study

pytest.importorskip("matplotlib")


def test_files_are_a_png_of_10_by_4_2_inches_and_an_svg_equal_to_the_byte(study_folder, tmp_path):
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
        png, svg = save(next(draw_study(read_study(study_folder), None)), folder)
    assert struct.unpack(">II", png.read_bytes()[16:24]) == (1500, 630)
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    assert svg.read_bytes() == (folders[0] / svg.name).read_bytes()
    assert b"<dc:date>" not in svg.read_bytes()
