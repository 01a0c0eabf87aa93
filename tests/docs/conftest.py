"""The pages that people read: README, CONTRIBUTING and everything under docs/."""

from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def pytest_generate_tests(metafunc):
    if "page" in metafunc.fixturenames:
        metafunc.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
