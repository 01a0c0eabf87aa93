"""Links between the pages lead somewhere."""

import re
from urllib.parse import unquote

LINK = re.compile(r"\]\(([^()\s]+)\)|<img[^>]* src=\"([^\"]+)\"")
CODE = re.compile(r"^ *```.*?^ *```$|`[^`\n]*`", flags=re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.*)$", flags=re.MULTILINE)


def links(page):
    """What the page links to, without what merely looks like a link in its code."""
    text = CODE.sub("", page.read_text(encoding="utf-8"))
    return [a or b for a, b in LINK.findall(text)]


def anchors(page):
    """The names under which GitHub shows the headings of a page."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(text)]


def test_relative_links_and_images_exist(page):
    for link in links(page):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{link} leads nowhere"
        if anchor:
            assert anchor in anchors(target), f"{target.name} has no heading for {link}"


def test_links_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A b, c\n[x](y.md) ![z](a/b.svg#c) `[n](o.md)`\n```\n[n](o.md)\n```\n")
    assert links(page) == ["y.md", "a/b.svg#c"]
    assert anchors(page) == ["a-b-c"]
