"""Write docs/api.md from the docstrings: `make docs`. A test fails if the page is not what this script gives."""

import ast
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from torch import nn

from advnas import strategies

PAGE = Path(__file__).parent / "api.md"
WIDTH = 112

# Module by module: the names to show, or None for all that it defines itself.
MODULES: dict[str, list[str] | None] = {
    "advnas": None,
    "advnas.search": ["cosine", "constant"],
    "advnas.strategies": ["names", "get", "options", "Strategy", "Phase", "Feedback"],
    "advnas.derive": None,
    "advnas.export": None,
    "advnas.retrain": None,
    "advnas.tasks.replay": None,
    "advnas.processes": ["Group", "RankGone", "joined", "current", "launched", "spawn"],
    "advnas.checkpoint": None,
    "advnas.testing": None,
}

HEAD = """# API

Made from the docstrings by `make docs`; do not edit.

"""


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    """The whole page as Markdown."""
    shown = {name: list(_objects(name, wanted)) for name, wanted in MODULES.items()}
    parts = [HEAD, *(_contents(name, things) for name, things in shown.items())]
    for name, things in shown.items():
        module = importlib.import_module(name)
        entries = [_entry(title, thing) for title, thing in things]
        parts += [f"\n## Module `{name}`\n\n", _prose(module.__doc__), _aliases(module, "".join(entries)), *entries]
    return "".join(parts)


def _contents(name: str, things: list[tuple[str, Any]]) -> str:
    """An item of the table of contents: a module and links to what is in it."""
    links = ", ".join(f"[`{title.removeprefix(f'{name}.')}`](#{_anchor(title)})" for title, _ in things)
    item = f"- `{name}`: {links}"
    return textwrap.fill(item, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False) + "\n"


def _objects(name: str, wanted: list[str] | None) -> Iterator[tuple[str, Any]]:
    """What a module offers, with the name to write in order to get it."""
    module = importlib.import_module(name)
    for word in wanted or getattr(module, "__all__", None) or _own(module):
        thing = getattr(module, word)
        if not isinstance(thing, ModuleType):
            yield f"{name}.{word}", thing
    if module is strategies:
        for strategy in strategies.names():
            yield f'advnas.strategies.get("{strategy}")', type(strategies.get(strategy))


def _own(module: ModuleType) -> list[str]:
    """Public functions and classes that the module defines, in the order of its source."""
    found = (node for node in _tree(module).body if isinstance(node, ast.FunctionDef | ast.ClassDef))
    return [node.name for node in found if not node.name.startswith("_")]


def _aliases(module: ModuleType, signatures: str) -> str:
    """Names of types that the signatures use, such as `LossOf = Callable[[nn.Module], Tensor]`."""
    homes = [sys.modules["advnas.search"]] if module.__name__ == "advnas" else [module]
    lines = [
        ast.unparse(node)
        for home in homes
        for node in _tree(home).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        if isinstance(node.value, ast.Subscript) and re.search(rf": [^,]*\b{node.targets[0].id}\b", signatures)
    ]
    return "\n" + _fenced("\n".join(lines)) if lines else ""


def _entry(title: str, thing: Any) -> str:
    """A heading, the signature, the docstring, and the public methods of a class."""
    signature = _signature(title, thing)
    words = [f"\n### `{title}`\n\n", _fenced(signature) + "\n" if signature else ""]
    words.append(_prose(thing.__doc__, _parameters(thing)))
    if not inspect.isclass(thing) or "get(" in title:  # all strategies have the methods of the protocol
        return "".join(words)
    if issubclass(thing, Enum):
        words += ["\n", *(f"- `{thing.__name__}.{member.name}`: {member.value}\n" for member in thing)]
    for word, member in vars(thing).items():
        if not word.startswith("_") and not (issubclass(thing, nn.Module) and hasattr(nn.Module, word)):
            words.append(_member(word, member))
    return "".join(words)


def _member(word: str, member: Any) -> str:
    """A method or a property; nothing for other attributes."""
    if isinstance(member, property | cached_property):
        function = member.fget if isinstance(member, property) else member.func
        returns = _node(function).returns
        kind = f": {ast.unparse(returns)}" if returns is not None else ""
        return f"\n**`.{word}{kind}`**\n\n{_prose(function.__doc__)}"
    if isinstance(member, classmethod | staticmethod):
        member, bound = member.__func__, isinstance(member, classmethod)
    elif isinstance(member, FunctionType):
        bound = True
    else:
        return ""
    signature = _signature(f".{word}", member, bound=bound)
    head = f"**`.{word}`**\n\n{_fenced(signature)}" if "\n" in signature else f"**`{signature}`**\n"
    return f"\n{head}\n{_prose(member.__doc__, _parameters(member))}"


def _signature(title: str, thing: Any, *, bound: bool = False) -> str:
    """How it is called, as the source has it: shorter than what Python knows, and the same for every version."""
    returns = None
    if not inspect.isclass(thing):
        node = _node(thing)
        arguments, returns = _arguments(node.args)[1 if bound else 0 :], node.returns
    elif "get(" in title:  # a strategy by its name; its fields are the options
        return _call("advnas.strategies.get(", [title.split("(")[1].removesuffix(")"), *_fields(thing)], None)
    elif is_dataclass(thing):
        arguments = _fields(thing)
    elif _has_constructor(thing):
        arguments = _arguments(_node(thing.__init__).args)[1:]
    else:
        return ""
    return _call(f"{title}(", arguments, returns)


def _has_constructor(kind: type) -> bool:
    """Whether the class says how it is made; an exception, an enumeration or a protocol does not."""
    return "__init__" in vars(kind) and not getattr(kind, "_is_protocol", False)


def _call(start: str, arguments: list[str], returns: ast.expr | None) -> str:
    end = ")" + (f" -> {ast.unparse(returns)}" if returns is not None else "")
    line = start + ", ".join(arguments) + end
    if len(line) > WIDTH:
        line = start + "\n" + "".join(f"    {argument},\n" for argument in arguments) + end
    return line


def _arguments(args: ast.arguments) -> list[str]:
    """Every argument with its type and default, and the star that separates those by keyword."""
    plain = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(plain) - len(args.defaults)) + list(args.defaults)
    words = [_argument(arg, default) for arg, default in zip(plain, defaults, strict=True)]
    if args.vararg:
        words.append("*" + ast.unparse(args.vararg))
    elif args.kwonlyargs:
        words.append("*")
    words += [_argument(arg, default) for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    return words + (["**" + ast.unparse(args.kwarg)] if args.kwarg else [])


def _argument(arg: ast.arg, default: ast.expr | None) -> str:
    equals = " = " if arg.annotation else "="
    return ast.unparse(arg) + ("" if default is None else equals + ast.unparse(default))


def _fields(kind: type) -> list[str]:
    """The fields of a dataclass, as its constructor takes them."""
    node = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(node, ast.ClassDef)
    lines = [ast.unparse(part) for part in node.body if isinstance(part, ast.AnnAssign)]
    return [line for line in lines if "ClassVar" not in line and not line.startswith("_")]


def _parameters(thing: Any) -> Set[str]:
    """Names that a docstring may explain."""
    if is_dataclass(thing):
        return {field.name for field in fields(thing)}
    if inspect.isclass(thing):
        return _parameters(thing.__init__) if _has_constructor(thing) else set()
    return {arg.arg for arg in ast.walk(_node(thing).args) if isinstance(arg, ast.arg)}


def _prose(docstring: str | None, parameters: Set[str] = frozenset()) -> str:
    """A docstring as Markdown: indented paragraphs are formulas or code, `name: ...` of a parameter is an item."""
    paragraphs = inspect.cleandoc(docstring or "").split("\n\n")
    return "\n".join(_paragraph(paragraph, parameters) for paragraph in paragraphs if paragraph)


def _paragraph(paragraph: str, parameters: Set[str]) -> str:
    if paragraph.startswith(("    ", "with ")):
        return _fenced(textwrap.dedent(paragraph))
    lines = [part for line in paragraph.splitlines() for part in _items_apart(line, parameters)]
    words: list[str] = []
    in_list = False
    for before, line in zip(["", *lines], lines, strict=False):
        names, explanation = _item(line, parameters)
        if names:
            words += [""] * (bool(words) and not in_list)
            words.append("- " + ", ".join(f"`{name}`" for name in names) + f": {_escaped(explanation)}")
            in_list = True
        elif in_list and (line.startswith(" ") or not before.endswith(".")):
            words.append(f"  {_escaped(line.strip())}")
        else:
            words += [""] * in_list + [_escaped(line.strip())]
            in_list = False
    return "\n".join(words) + "\n"


def _item(line: str, parameters: Set[str]) -> tuple[list[str], str]:
    """The parameters that a line begins to explain, and what it says of them; no names if it explains none."""
    names, _, explanation = line.partition(": ")
    split = names.split(", ")
    return (split, explanation) if explanation and set(split) <= parameters else ([], line)


def _items_apart(line: str, parameters: Set[str]) -> Iterator[str]:
    """Short explanations stand on one line: `model: to train. best: the epoch.`"""
    start = 0
    for match in re.finditer(r"(?<=\. )\w+(, \w+)*: ", line):
        if _item(line[match.start() :], parameters)[0]:
            yield line[start : match.start()].rstrip()
            start = match.start()
    yield line[start:]


def _escaped(line: str) -> str:
    """Stars are no emphasis; inside backticks they are stars anyway."""
    parts = line.split("`")
    parts[::2] = [re.sub(r"([*<])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def _fenced(text: str) -> str:
    return f"```text\n{text}\n```\n"


def _anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _node(function: Any) -> ast.FunctionDef:
    node = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body[0]
    assert isinstance(node, ast.FunctionDef)
    return node


def _tree(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


if __name__ == "__main__":
    main()
