"""What users have named is printed as they have named it."""

import ast
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

import advnas.cli
from advnas.cli.console import console
from advnas.cli.progress import study_view
from advnas.studies.execute import Job, plan
from advnas.studies.folder import read_settings
from advnas.studies.own_network import OwnNetworkSettings, OwnNetworkStudy

HERE = Path(__file__).parent
FOLDER = "found[/f]"
QUICK = ["--epochs", 2, "--warmup", 0, "--jobs", 1, "--seeds", 1]


@pytest.fixture
def at_home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv("COLUMNS", "200")  # nothing is wrapped
    return tmp_path


def test_all_that_commands_show_has_hostile_names_as_they_are(at_home, here):
    from hostile_names import DECISION, OPERATIONS

    search = ["search", "hostile_names:make_search", *QUICK, "--folder", FOLDER]
    code, output, error = here(*search)
    assert code == 0, error
    assert any(f"{DECISION}: {operation}\n" in output for operation in OPERATIONS)
    assert "validation error[/top1]" in output
    assert f"advnas export '{FOLDER}' --to pt2" in output
    code, _, error = here(*search)
    assert code == 2
    assert f"{FOLDER} already holds a search" in error
    code, output, error = here("report", FOLDER)
    assert code == 0, error
    assert f"wrote {FOLDER}/report/index.html" in output
    code, output, error = here("retrain", FOLDER, "--epochs", 1)
    assert code == 0, error
    assert "validation error[/top1]: " in output
    code, output, error = here("export", FOLDER, "--to", "plain")
    assert code == 0, error
    assert f"wrote {FOLDER}/export" in output


def test_commands_to_paste_take_any_folder(at_home, here):
    code, output, error = here("search", "my_searches:make_search", *QUICK, "--folder", "my runs")
    assert code == 0, error
    assert "advnas export 'my runs' --to pt2" in output
    assert "advnas search --resume --folder 'my runs' --seeds" in output
    for result in Path("my runs").rglob("result.json"):
        result.unlink()
    code, _, error = here("export", "my runs")
    assert code == 2
    assert "Go on with: advnas search --resume --folder 'my runs'" in error


def test_figures_show_hostile_names_as_they_are(at_home, here):
    from hostile_names import DECISION, OPERATIONS

    assert here("search", "hostile_names:make_search", *QUICK, "--folder", FOLDER)[0] == 0
    drawn = Path(FOLDER, "report/probabilities-contrast.svg").read_text()
    for name in (DECISION, *OPERATIONS):
        assert f"{escape(name)}</text>" in drawn, name


def test_progress_shows_hostile_names_as_they_are(at_home, here, capsys):
    from hostile_names import DECISION

    assert here("search", "hostile_names:make_search", *QUICK, "--folder", FOLDER)[0] == 0
    study = OwnNetworkStudy(read_settings(Path(FOLDER), OwnNetworkSettings))
    for result in Path(FOLDER).rglob("result.json"):
        result.unlink()
    for evaluation in Path(FOLDER).rglob("evaluation"):
        evaluation.rename(evaluation.with_name("before"))
    console().print(study_view(study, plan(study, ["contrast"], [0]), Path(FOLDER), 1.0))
    assert f"most likely: {DECISION} " in capsys.readouterr().out
    assert Job("a[/x]", 0).name == "a[/x], seed 0"


@pytest.mark.parametrize(
    "arguments",
    [
        ["data", "get", "{}"],
        ["data", "status", "--data-folder", "{}"],
        ["search", "{}"],
        ["search", "m{}:f"],
        ["search", "--task", "{}"],
        ["search", "--space", "{}", "--task", "digits"],
        ["search", "--strategy", "{}"],
        ["search", "--config", "{}"],
        ["search", "--device", "{}", "--task", "digits"],
        ["search", "--resume", "--folder", "{}", "--task", "{}"],
        ["report", "{}"],
        ["retrain", "{}"],
        ["export", "{}"],
        ["query", "nasbench201", "{}", "--data-folder", "{}"],
        ["experiment", "toy", "--strategies", "{}"],
        ["experiment", "cifar10", "--folder", "{}", "--data-folder", "{}", "--strategies", "advantage"],
        ["experiment", "cifar10", "--preset", "{}"],
        ["experiment", "{}"],
        ["list", "{}"],
        ["{}"],
        ["search", "--{}"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("name", ["conv[k=3]", "conv[/x]", "[red]skip"])
def test_answers_to_bad_input_show_it_as_it_is(arguments, name, at_home, here):
    code, output, error = here(*(argument.format(name) for argument in arguments))
    assert name in output + error
    assert "Traceback" not in error
    assert code in (0, 2)


def test_options_of_a_config_file_are_shown_as_they_are(at_home, here):
    Path("my.toml").write_text('entry = "hostile_names:make_search"\n[options]\n"conv[/x]" = "[/y]"\n')
    code, output, error = here("search", "--config", "my.toml", "--plan")
    assert code == 0, error
    assert "weights of all candidates" in output


def test_only_one_file_makes_consoles():
    """A new console would read markup in names again."""
    allowed = {"console.py"}
    for path in Path(advnas.cli.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if path.name in allowed or not isinstance(node, ast.Call):
                continue
            made = ast.unparse(node.func)
            assert made not in ("Console", "rich.print", "TextColumn", "escape"), (
                f"{path.name}:{node.lineno} {made}"
            )
