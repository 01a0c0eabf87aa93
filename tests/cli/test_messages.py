"""Ctrl-C, errors of the system and what was misspelt are answered in a sentence."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from advnas.search import NonFiniteLoss, SearchStopped


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (KeyboardInterrupt(), "advnas: Stopped.\n"),
        (KeyboardInterrupt("The processes were stopped."), "advnas: The processes were stopped.\n"),
        (SearchStopped("Saved. Go on with: x"), "advnas: Saved. Go on with: x\n"),
    ],
)
def test_an_interrupt_is_told_with_its_reason_or_without(here, monkeypatch, raised, told):
    def stop(command):
        raise raised

    monkeypatch.setattr(sys.modules["advnas.cli.main"], "run", stop)
    assert here("list", "tasks") == (130, "", told)


def test_an_interrupt_while_searching_says_how_to_go_on(here, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    import advnas.studies.execute

    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(advnas.studies.execute, "execute", stop)
    code, _, error = here("search", "--task", "digits", "--folder", "f", "--jobs", 1)
    assert code == 130
    assert error == "advnas: Stopped. Go on with: advnas search --resume --folder f\n"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (PermissionError(13, "Permission denied", "runs/x"), "advnas: runs/x: Permission denied.\n"),
        (OSError(28, "No space left on device"), "advnas: No space left on device.\n"),
        (FileNotFoundError("There is no table in F. Get it."), "advnas: There is no table in F. Get it.\n"),
    ],
)
def test_errors_of_the_system_are_told_without_their_number(here, monkeypatch, error, told):
    def fail(command):
        raise error

    monkeypatch.setattr(sys.modules["advnas.cli.main"], "run", fail)
    assert here("list", "tasks") == (2, "", told)


@pytest.mark.parametrize(
    "error", [ImportError("Write pip install 'advnas[onnx]'."), NonFiniteLoss("The loss is nan in weight step 3.")]
)
def test_what_the_user_can_mend_is_told_in_a_sentence(here, monkeypatch, error):
    def fail(command):
        raise error

    monkeypatch.setattr(sys.modules["advnas.cli.main"], "run", fail)
    assert here("list", "tasks") == (2, "", f"advnas: {error}\n")


@pytest.mark.parametrize("command", [["search", "--help"], ["list", "strategies"], ["--version"]])
def test_of_a_reader_that_has_gone_nothing_is_said(command):
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run(
        [sys.executable, "-m", "advnas", *command], stdout=write, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write)
    assert (ended.returncode, ended.stderr) == (1, "")


def test_a_misspelt_command_is_told_what_was_meant(here):
    code, _, error = here("serch", "--task", "digits")
    assert (code, error.partition(". ")[0]) == (2, "advnas: There is no command 'serch' (did you mean 'search'?)")


@pytest.mark.parametrize("name", ["search", "export", "retrain", "experiment", "report", "query", "data", "list"])
def test_every_command_has_help(here, name):
    assert here(name, "--help")[0] == 0


@pytest.mark.parametrize(
    "command", [["search", "--epochs"], ["retrain", "f", "--seed"], ["experiment", "toy", "--seeds"]]
)
def test_what_is_no_number_is_told_as_such(here, command):
    code, _, error = here(*command, "three")
    assert code == 2
    assert f"Error parsing {command[-1]}: 'three' is not a whole number." in error


@pytest.mark.parametrize("command", [["export"], ["retrain"], ["export", "--run", "contrast-9"]])
def test_the_answer_of_a_search_that_is_not_over_is_told_how_to_get(here, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    assert (
        here("search", "my_searches:make_search", "--epochs", 2, "--seeds", 1, "--jobs", 1, "--folder", "f")[0] == 0
    )
    for result in tmp_path.rglob("result.json"):
        result.unlink()
    code, _, error = here(command[0], "f", *command[1:])
    assert code == 2
    assert "f is not over, so there is no answer yet. Go on with: advnas search --resume --folder f" in error
