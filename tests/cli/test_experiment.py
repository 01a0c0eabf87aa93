"""The command line as a person meets it: in a process of its own where the process matters."""

import json
import subprocess
import sys
from dataclasses import fields

import numpy as np
import pytest
import torch

from advnas import __version__, strategies
from advnas.paper.cifar10 import PRESETS
from advnas.search import SearchStopped
from advnas.spaces import SPACES
from advnas.studies import execute
from advnas.tables import nasbench201, nasbench_macro
from advnas.tasks import cifar10
from advnas.tasks.cifar10 import Images

TINY = ["experiment", "toy", "--preset", "quick", "--iterations", "20", "--seeds", "2"]


def advnas(*arguments):
    command = [sys.executable, "-m", "advnas", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


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
    assert len(strategies.names()) == 14
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


# CIFAR-10, its benchmark and its data


CONVOLUTIONS = "|nor_conv_3x3~0|+|nor_conv_3x3~0|nor_conv_3x3~1|+|nor_conv_3x3~0|nor_conv_3x3~1|nor_conv_3x3~2|"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A data folder with a made-up table: cell number n has an accuracy of n / 1000."""
    folder = tmp_path_factory.mktemp("data")
    cells = nasbench201.all_cells()
    values = np.repeat(np.arange(len(cells))[:, None] / 1000, len(nasbench201.DECIMALS), axis=1)
    nasbench201.Table(cells, values).save(folder / "nasbench201.csv.gz")
    return folder


def test_a_query_tells_accuracy_rank_and_costs(data, here):
    code, output, _ = here("query", "nasbench201", CONVOLUTIONS, "--json", "--data-folder", data)
    answer = json.loads(output)
    place = nasbench201.all_cells().index(CONVOLUTIONS)
    assert code == 0
    assert answer["cell"] == CONVOLUTIONS
    assert answer["datasets"]["cifar10"]["test"] == place / 1000
    assert answer["datasets"]["cifar100"]["rank_test"] == 15_625 - place
    _, output, _ = here("query", "nasbench201", CONVOLUTIONS, "--data-folder", data, "--dataset", "cifar10")
    assert "cifar100" not in output
    assert "multiply-adds" in output


def test_a_query_of_the_other_benchmark_has_the_same_form(tmp_path, here):
    rows = (f"{network},90,91,92,387882,7713280" for network in nasbench_macro.all_networks())
    (tmp_path / "nasbench_macro.csv").write_text("\n".join(["arch,test_1,test_2,test_3,params,flops", *rows]))
    code, output, _ = here("query", "nasbench_macro", "22212220", "--json", "--data-folder", tmp_path)
    assert code == 0
    assert json.loads(output)["datasets"]["cifar10"]["trainings"] == [90, 91, 92]
    _, output, _ = here("query", "nasbench_macro", "22212220", "--data-folder", tmp_path)
    assert "91.00" in output
    assert "0.387882 M parameters, 7.71328 M multiply-adds" in output
    code, _, error = here("query", "nasbench_macro", "2221222x", "--data-folder", tmp_path)
    assert code == 2
    assert "layer 7 has 'x'" in error


def test_every_study_has_presets_of_its_own(here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, output, _ = here("experiment", "macro", "--preset", "full", "--show")
    assert code == 0
    assert "1280" in output
    code, _, error = here("experiment", "macro", "--preset", "paper", "--show")
    assert code == 2
    assert "full" in error


def test_a_query_needs_no_torch(data):
    script = f"""
import sys
from advnas.cli import main
sys.argv = ["advnas", "query", "nasbench201", {CONVOLUTIONS!r}, "--data-folder", {str(data)!r}, "--json"]
main()
assert "torch" not in sys.modules
"""
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (0, "")


def test_a_malformed_cell_is_told_where_it_is_wrong(data, here):
    code, _, error = here("query", "nasbench201", CONVOLUTIONS.replace("3x3~1", "3x4~1", 1), "--data-folder", data)
    assert code == 2
    assert is_one_line(error)
    assert "1->2" in error
    assert "did you mean 'nor_conv_3x3'" in error


def test_a_data_folder_without_a_table_is_told(tmp_path, here):
    code, _, error = here("query", "nasbench201", CONVOLUTIONS, "--data-folder", tmp_path)
    assert code == 2
    assert error.startswith("advnas: ")
    assert str(tmp_path) in error


def test_data_status_tells_what_is_there(data, here, monkeypatch):
    monkeypatch.setenv("ADVNAS_DATA", str(data))
    code, output, _ = here("data", "status")
    assert code == 0
    states = {line.split("│")[1].strip(): line.split("│")[2].strip() for line in output.splitlines() if "│" in line}
    assert (states["cifar10"], states["nasbench201"]) == ("missing", "present")


def test_a_dataset_nobody_knows_is_told(here, tmp_path):
    code, _, error = here("data", "get", "cifar11", "--data-folder", tmp_path)
    assert code == 2
    assert "cifar10" in error


def test_show_prints_every_setting_and_runs_nothing(here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, output, _ = here("experiment", "cifar10", "--preset", "paper", "--show")
    assert code == 0
    for field in fields(PRESETS["paper"]):
        assert field.name in output
    assert "39,000" in output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--strategies", "advantag"], "did you mean 'advantage'"),
        (["--seeds", "0"], "--seeds must be a positive integer, got 0"),
        (["--jobs", "0"], "--jobs must be a positive integer, got 0"),
        (["--address", "auto"], "--address is for --engine ray, got 'auto'"),
        (["--first-seed", "-1"], "--first-seed must be an integer of at least 0"),
        ([], "No CIFAR-10 in"),
    ],
)
def test_a_study_that_cannot_work_is_refused_before_it_leaves_a_trace(
    arguments, message, here, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    code, _, error = here("experiment", "cifar10", "--preset", "quick", "--data-folder", tmp_path, *arguments)
    assert code == 2
    assert message in error
    assert not list(tmp_path.iterdir())


def test_a_study_shows_every_run_and_is_not_run_twice(here, tmp_path, data, monkeypatch):
    images = Images(torch.zeros(50_000, 3, 32, 32, dtype=torch.uint8), torch.zeros(50_000, dtype=torch.long))
    monkeypatch.setattr(cifar10, "read_once", lambda folder, part: images)
    command = ["experiment", "cifar10", "--preset", "quick", "--jobs", 1, "--data-folder", data, "--json"]
    command += ["--folder", tmp_path, "--strategies", "advantage", "random"]
    code, output, error = here(*command)
    rows = json.loads(output)
    assert code == 0
    assert [(row["strategy"], row["seed"]) for row in rows] == [("advantage", 0), ("random", 0)]
    assert rows[0]["argmax_accuracy"] == nasbench201.all_cells().index(rows[0]["argmax"]) / 1000
    assert rows[1]["argmax"] is None  # nothing that random would prefer
    assert rows[1]["process_best_accuracy"] == nasbench201.all_cells().index(rows[1]["process_best"]) / 1000
    assert "warm-up, seed 0: done; 1 of 3" in error
    assert here(*command)[1] == output
    code, _, error = here(*command, "--zero")
    assert code == 2
    assert "zero is True now and was False" in error
    code, output, _ = here("report", tmp_path, "--data-folder", data)
    assert code == 0
    assert (tmp_path / "report" / "index.html").exists()


def test_a_study_that_is_stopped_says_how_to_go_on(here, tmp_path, data, monkeypatch):
    def stop(*_, **__):
        raise SearchStopped("The runs under way were stopped and saved.")

    images = Images(torch.zeros(32, 3, 32, 32, dtype=torch.uint8), torch.arange(32) % 10)
    monkeypatch.setattr(cifar10, "read_once", lambda folder, part: images)
    monkeypatch.setattr(execute, "execute", stop)
    command = [
        "experiment",
        "cifar10",
        "--preset",
        "quick",
        "--data-folder",
        data,
        "--folder",
        tmp_path / "my runs",
    ]
    code, _, error = here(*command)
    assert code == 130
    assert error == (
        "advnas: The runs under way were stopped and saved. Go on with: advnas experiment cifar10 --preset quick "
        f"--data-folder {data} --folder '{tmp_path / 'my runs'}'\n"
    )


def test_a_report_needs_a_study(here, tmp_path):
    code, _, error = here("report", tmp_path)
    assert code == 2
    assert "study.json" in error
