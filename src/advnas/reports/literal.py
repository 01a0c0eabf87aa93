"""Names as matplotlib shall draw them: as they are."""


def literal(name: str) -> str:
    """A text that is drawn as this name. Matplotlib reads $...$ as formulas, and hides lines named _..."""
    return (" " if name.startswith("_") else "") + name.replace("$", r"\$")


def spoken(text: str) -> str:
    """The name that a literal text is drawn as."""
    return text.removeprefix(" ").replace(r"\$", "$")
