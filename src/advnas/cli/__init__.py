"""The command line. Torch is imported inside the commands, so that help answers at once."""

from advnas.cli.main import main

__all__ = ["main"]
