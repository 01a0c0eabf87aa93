"""Write the API pages to docs/api from the docstrings: `make docs`."""

import importlib
import pkgutil
import warnings
from pathlib import Path

import pdoc.doc
import pdoc.render

import advnas

FOLDER = Path(__file__).parent / "api"
LEFT_OUT = ("advnas.__main__", "advnas.cli")  # commands: `advnas --help` describes them


def documented() -> dict[str, pdoc.doc.Module]:
    """Return all modules that have a page, by name."""
    found = (module.name for module in pkgutil.walk_packages(advnas.__path__, "advnas."))
    names = ["advnas", *(name for name in found if not name.startswith(LEFT_OUT))]
    return {name: read(name) for name in names}


def read(name: str) -> pdoc.doc.Module:
    """Return a module as pdoc sees it, after importing what the module itself imports on first use only."""
    module = importlib.import_module(name)
    for public in getattr(module, "__all__", ()):
        setattr(module, public, getattr(module, public))
    return pdoc.doc.Module(module)


def write(path: Path, text: str) -> None:
    """Write one file of the pages, and the folders that it needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def main() -> None:
    """Render a page per module, the index and the search index."""
    warnings.filterwarnings("ignore", "Error parsing type annotation")  # names imported for type checkers only
    pdoc.render.configure(docformat="google")
    modules = documented()
    for name, module in modules.items():
        write(FOLDER / f"{name.replace('.', '/')}.html", pdoc.render.html_module(module, modules))
    write(FOLDER / "index.html", pdoc.render.html_index(modules))
    write(FOLDER / "search.js", pdoc.render.search_index(modules))


if __name__ == "__main__":
    main()
