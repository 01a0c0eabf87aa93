"""What the README shows works: its Python blocks run one after another, in one namespace."""

import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_the_python_blocks_of_the_readme_run(tmp_path, monkeypatch):
    text = README.read_text(encoding="utf-8")
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL))
    assert blocks
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    for block in blocks:
        above = text[: block.start(1)].count("\n")  # so that an error shows the line of the README
        exec(compile("\n" * above + block[1], str(README), "exec"), namespace)
