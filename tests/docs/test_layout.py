"""The layout that CONTRIBUTING shows is the layout that there is."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "advnas"
NAME = re.compile(r"\b(\w+)(?:\.py|/)(?= )")


def test_every_room_and_module_of_the_package_is_named():
    layout = re.search(r"^src/advnas/\n(.*?)^tests/", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL | re.MULTILINE)
    shown = {name for line in layout[1].splitlines() for name in NAME.findall(line.partition("     ")[0] + " ")}
    there = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert shown == there - {"__init__", "__main__"}
