"""What the pages show works: the Python blocks of each run in turn, in one namespace and an empty folder."""

import re

import pytest

# `python` is the word for a block that runs. What must not run is written as text, bash and the like.
BLOCK = re.compile(r"^```python\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^ *```(\S*)$", flags=re.MULTILINE)


def test_the_python_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    text = page.read_text(encoding="utf-8")
    blocks = list(BLOCK.finditer(text))
    if not blocks:
        pytest.skip("no Python on this page")
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    for block in blocks:
        above = text[: block.start(1)].count("\n")  # so that an error shows the line of the page
        exec(compile("\n" * above + block[1], str(page), "exec"), namespace)


def test_every_python_block_of_a_page_is_found(page):
    """A block that is indented, or called py or python3, would not be run by the test above."""
    text = page.read_text(encoding="utf-8")
    opened = [word for word in FENCE.findall(text)[::2] if word.startswith("py")]
    assert opened == ["python"] * len(BLOCK.findall(text))
