"""The command line as a person meets it: in a process of its own where the process matters."""

import json
import subprocess
import sys

import pytest

from advnas import __version__, strategies
from advnas.cli import main
from advnas.spaces import SPACES

TINY = ["experiment", "toy", "--preset", "quick", "--iterations", "20", "--seeds", "2"]


def advnas(*arguments):
    command = [sys.executable, "-m", "advnas", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("toy") / "new"


@pytest.fixture(scope="module")
def study(folder):
    """One small study, in a process of its own, kept in a folder."""
    return advnas(*TINY, "--strategies", "advantage", "random", "--json", "--folder", folder)


def is_one_line(error):
    return error.startswith("advnas: ") and error.count("\n") == 1 and error.endswith(".\n")


# Help


def test_help_and_version_answer_without_torch():
    script = """
import sys
from advnas.cli import main
for argument in ("--version", "--help"):
    sys.argv = ["advnas", argument]
    try:
        main()
    except SystemExit as end:
        assert not end.code
slow = {"torch", "numpy", "matplotlib"} & set(sys.modules)
assert not slow, slow
"""
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (0, "")
    version, _, rest = answer.stdout.partition("\n")
    assert version == f"advnas {__version__}"
    assert "experiment" in rest
    assert "list" in rest


def test_help_of_a_study_names_its_options(here):
    code, output, _ = here("experiment", "toy", "--help")
    assert code == 0
    for option in ("--preset", "--strategies", "--seeds", "--iterations", "--seed", "--folder", "--json"):
        assert option in output


# Lists


def test_list_strategies_names_all_of_them(here):
    code, output, _ = here("list", "strategies")
    assert code == 0
    assert len(strategies.names()) == 11
    assert {line.split()[1] for line in output.splitlines() if len(line.split()) > 1} >= set(strategies.names())


def test_list_spaces_names_all_of_them(here):
    code, output, _ = here("list", "spaces")
    assert code == 0
    assert all(name in output for name in SPACES)


# The toy study


def test_json_is_one_object_and_alone_on_standard_output(study):
    assert study.returncode == 0, study.stderr
    assert study.stdout.count("\n") == 1
    curves = json.loads(study.stdout)
    assert list(curves) == ["advantage", "random"]
    for curve in curves.values():
        assert list(curve) == ["iterations", "median", "q25", "q75", "final"]
        assert curve["iterations"] == [0, 10, 20]
        assert [len(curve[key]) for key in ("median", "q25", "q75")] == [3, 3, 3]
        assert len(curve["final"]) == 2
        rising = zip(curve["q25"], curve["median"], curve["q75"], strict=True)
        assert all(low <= middle <= high for low, middle, high in rising)


def test_the_table_and_the_progress_go_to_standard_error_then(study):
    assert "Toy regression" in study.stderr
    assert "iteration 20 of 20" in study.stderr


def test_a_folder_holds_the_numbers_and_the_figure(study, folder):
    assert {path.name for path in folder.iterdir()} == {"results.json", "toy.csv", "toy.png", "toy.svg"}
    kept = json.loads((folder / "results.json").read_text())
    assert list(kept["rows"]) == ["advantage", "random"]
    assert kept["settings"]["iterations"] == 20
    assert kept["settings"]["trials"] == 2
    command = kept["provenance"]["advantage"]["command"]
    assert command.startswith("advnas experiment toy --preset quick --iterations 20 --seeds 2")


def test_a_second_run_runs_only_what_is_missing(study, folder, here):
    before = json.loads((folder / "results.json").read_text())
    code, output, error = here(*TINY, "--strategies", "darts", "advantage", "--json", "--folder", folder)
    assert code == 0
    assert json.loads(output)["advantage"] == json.loads(study.stdout)["advantage"]
    assert "darts: loss" in error
    after = json.loads((folder / "results.json").read_text())
    assert list(after["rows"]) == ["advantage", "random", "darts"]
    for name in ("advantage", "random"):
        assert after["rows"][name] == before["rows"][name]
        assert after["provenance"][name] == before["provenance"][name]
    code, output, error = here(*TINY, "--strategies", "darts", "--folder", folder)
    assert (code, error) == (0, "")
    assert "darts" in output
    assert json.loads((folder / "results.json").read_text()) == after


def test_without_json_the_table_is_on_standard_output(here):
    code, output, error = here(*TINY, "--strategies", "random")
    assert code == 0
    assert "Toy regression" in output
    assert "--folder" in output
    assert "Toy regression" not in error


@pytest.mark.usefixtures("study")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--seeds", "3"], "trials is 3 now and was 2"),
        (["--iterations", "30"], "iterations is 30 now and was 20"),
        (["--seed", "1"], "seed is 1 now and was 0"),
    ],
    ids=["seeds", "iterations", "seed"],
)
def test_a_folder_of_other_settings_is_refused_and_left_alone(change, message, folder, here):
    before = (folder / "results.json").read_bytes()
    code, output, error = here(*TINY, *change, "--strategies", "random", "--folder", folder)
    assert (code, output) == (2, "")
    assert is_one_line(error)
    assert message in error
    assert (folder / "results.json").read_bytes() == before


# Mistakes


def test_a_misspelt_strategy_is_told_what_was_meant_and_nothing_else():
    answer = advnas(*TINY, "--strategies", "advantge")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert is_one_line(answer.stderr)
    assert "did you mean 'advantage'?" in answer.stderr


@pytest.mark.parametrize("option", ["--seeds", "--iterations"])
@pytest.mark.parametrize("value", ["0", "-1"])
def test_counts_must_be_positive(option, value, here):
    code, output, error = here("experiment", "toy", "--preset", "quick", option, value)
    assert (code, output) == (2, "")
    assert is_one_line(error)
    assert f"must be a positive integer, got {value}" in error


@pytest.mark.parametrize(
    "arguments", [["experimnt"], ["list", "spices"], [*TINY, "--seeds", "two"], [*TINY, "--no-such-option"]]
)
def test_what_is_no_command_is_refused(arguments, here):
    code, _, error = here(*arguments)
    assert code == 2
    assert "Traceback" not in error


def test_a_folder_that_is_a_file_is_refused(tmp_path, here):
    (tmp_path / "file").write_text("")
    code, output, error = here(*TINY, "--strategies", "random", "--folder", tmp_path / "file")
    assert (code, output) == (2, "")
    assert error.splitlines()[-1].startswith("advnas: ")


def test_a_folder_that_cannot_be_made_is_refused_before_the_study(tmp_path, here):
    (tmp_path / "file").write_text("")
    _, _, error = here(*TINY, "--strategies", "random", "--folder", tmp_path / "file")
    assert "iteration" not in error


@pytest.mark.parametrize("rows", ["abc", None, 7, [], [[]], [[1.0]], [[1.0, 2.0], [1.0, 2.0], [1.0, None]]])
def test_results_whose_rows_are_no_losses_of_this_study_are_refused(rows, tmp_path, here):
    arguments = [*TINY, "--strategies", "random", "--folder", tmp_path]
    assert here(*arguments)[0] == 0
    content = json.loads((tmp_path / "results.json").read_text())
    (tmp_path / "results.json").write_text(json.dumps({**content, "rows": {"random": rows}}))
    code, _, error = here(*arguments)
    assert code == 2
    assert "results.json" in error
