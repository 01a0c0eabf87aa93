"""The API page is what the docstrings say."""

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parent.parent.parent / "docs"


def make_api():
    spec = importlib.util.spec_from_file_location("make_api", DOCS / "make_api.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date():
    written = (DOCS / "api.md").read_text(encoding="utf-8")
    assert written == make_api().page(), "docs/api.md does not fit the docstrings; run `make docs`"


def test_everything_public_is_there_and_explained():
    script = make_api()
    page = script.page()
    for name, wanted in script.MODULES.items():
        for title, thing in script._objects(name, wanted):
            assert thing.__doc__, f"{title} has no docstring"
            assert f"### `{title}`" in page


def test_a_docstring_becomes_markdown():
    docstring = """Do it.

            y = f(x)

        x: what to do,
            and how. `a*b`
        f: stars like * are no emphasis. g: on the same line.
        The rest is prose: it says so.
        """
    assert make_api()._prose(docstring, {"x", "f", "g"}) == (
        "Do it.\n\n```text\ny = f(x)\n```\n\n"
        "- `x`: what to do,\n  and how. `a*b`\n- `f`: stars like \\* are no emphasis.\n- `g`: on the same line.\n\n"
        "The rest is prose: it says so.\n"
    )
