"""What the pages show works: the Python blocks of each run in turn, in one namespace and an empty folder.

A block that begins with `# needs: PACKAGE ...` runs with the slow tests, which install these packages.
"""

import re

import pytest

# `python` is the word for a block that runs. What must not run is written as text, bash and the like.
BLOCK = re.compile(r"^```python\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^ *```(\S*)$", flags=re.MULTILINE)
NEEDS = re.compile(r"# needs: (.*)\n")


def run(page, blocks):
    text, namespace = page.read_text(encoding="utf-8"), {"__name__": "__main__"}
    for block in blocks:
        above = text[: block.start(1)].count("\n")  # so that an error shows the line of the page
        exec(compile("\n" * above + block[1], str(page), "exec"), namespace)


def blocks_of(page):
    return list(BLOCK.finditer(page.read_text(encoding="utf-8")))


def test_the_python_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    blocks = [block for block in blocks_of(page) if not NEEDS.match(block[1])]
    if not blocks:
        pytest.skip("no Python on this page")
    monkeypatch.chdir(tmp_path)
    run(page, blocks)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # other packages have warnings of their own
def test_the_blocks_that_need_more_packages_run(page, tmp_path, monkeypatch):
    blocks = blocks_of(page)
    needed = {name for block in blocks if (needs := NEEDS.match(block[1])) for name in needs[1].split()}
    if not needed:
        pytest.skip("no such block on this page")
    for name in needed:
        pytest.importorskip(name)
    monkeypatch.chdir(tmp_path)
    run(page, blocks)


def test_every_python_block_of_a_page_is_found(page):
    """A block that is indented, or called py or python3, would not be run by the test above."""
    text = page.read_text(encoding="utf-8")
    opened = [word for word in FENCE.findall(text)[::2] if word.startswith("py")]
    assert opened == ["python"] * len(BLOCK.findall(text))
