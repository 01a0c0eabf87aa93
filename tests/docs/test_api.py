"""Every public name has a docstring, so that the API pages of `make docs` have no gaps."""

import runpy
from pathlib import Path

import pytest

pytest.importorskip("pdoc")


@pytest.fixture(scope="module")
def modules():
    return runpy.run_path(str(Path(__file__).parents[2] / "docs" / "make_api.py"))["documented"]()


def own(namespace):
    """The public functions and classes that are written in advnas, with the members of the classes."""
    for member in namespace.own_members:
        if member.kind not in ("function", "class") or member.name.startswith("_"):
            continue
        if (getattr(member.obj, "__module__", None) or "").startswith("advnas"):
            yield member
            if member.kind == "class":
                yield from own(member)


def test_every_public_name_has_a_docstring(modules):
    described = [*modules.values(), *(member for module in modules.values() for member in own(module))]
    assert [one.fullname for one in described if not one.docstring] == []


def test_the_pages_show_what_is_imported_on_first_use(modules):
    assert {"Choice", "Search", "Task"} <= set(modules["advnas"].members)


def test_commands_have_no_page(modules):
    assert "advnas.search" in modules
    assert not [name for name in modules if name.startswith("advnas.cli")]
