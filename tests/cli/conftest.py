import sys

import pytest

from advnas.cli import main


@pytest.fixture
def here(monkeypatch, capsys):
    """Runs a command in this process: exit code, standard output, standard error."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["advnas", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        return code, *capsys.readouterr()

    return run
