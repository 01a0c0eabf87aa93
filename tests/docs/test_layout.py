"""The layout that CONTRIBUTING shows is the layout that there is."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "advnas"
NAME = re.compile(r"\b(\w+)(?:\.py|/)(?= )")


def test_every_room_and_module_of_the_package_is_named():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    layout = text[text.index("src/advnas/\n") : text.index("\ntests/ ")]
    shown = {name for line in layout.splitlines()[1:] for name in NAME.findall(line.partition("     ")[0] + " ")}
    there = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert shown == there - {"__init__", "__main__"}
