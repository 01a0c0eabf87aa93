"""Where commands print: texts as they are. Folders, operations and decisions are the user's, and may have brackets.

Rich would read `conv[k=3]` as markup and leave out the brackets, and raise at `conv[/x]`. All consoles and columns
of text of the command line are made here, so that nobody has to remember to escape.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TextColumn


def console(*, stderr: bool = False) -> "Console":
    """A console without markup, emoji codes and colours for numbers."""
    from rich.console import Console

    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def description() -> "TextColumn":
    """The column of a progress bar that says what is under way."""
    from rich.progress import TextColumn

    return TextColumn("{task.description}", markup=False)
