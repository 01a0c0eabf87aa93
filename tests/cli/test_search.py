"""`advnas search`, `export`, `retrain` as a person meets them."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from advnas.randomness import seed_of
from advnas.records.journal import read_journal
from advnas.reports.pairs import ENOUGH
from advnas.search import CreditCheck, Swap, loop
from advnas.studies.run import read_results

HERE = Path(__file__).parent
DIGITS = ["--task", "digits", "--strategy", "advantage"]
QUICK = ["--epochs", "3", "--seeds", "2", "--jobs", "1"]


@pytest.fixture
def at_home(tmp_path, monkeypatch):
    """A folder to work in, from where the entry points can be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(HERE))
    return tmp_path


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A search on images, much shortened, in a process of its own."""
    folder = tmp_path_factory.mktemp("digits")
    command = [sys.executable, "-m", "advnas", "search", *DIGITS, *QUICK, "--json"]
    answer = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    return folder, answer


def test_a_search_ends_with_a_table_a_verdict_and_a_report(digits):
    folder, answer = digits
    told = json.loads(answer.stdout)
    assert told["measure"] == "test accuracy"
    names = ("advantage", "random", "ranked_random")
    assert sorted(told["runs"]) == [f"{name}-{seed}" for name in names for seed in (0, 1)]
    assert told["means"].keys() == set(names)
    assert [(pair["strategy"], pair["other"], pair["pairs"]) for pair in told["pairs"]] == [
        ("advantage", "random", 2),
        ("advantage", "ranked_random", 2),
        ("ranked_random", "random", 2),
    ]
    assert set(told["answer"]["architecture"]) == {"0->1", "0->2", "1->2", "0->3", "1->3", "2->3"}
    for baseline in ("random", "ranked_random"):
        words = f"Too few seeds to tell whether advantage beats {baseline}"
        assert any(words in remark["text"] for remark in told["verdict"])
    page = (folder / told["report"]).read_text()
    assert "Verdict" in page
    assert "test accuracy" in page
    assert max(map(len, answer.stderr.splitlines())) <= 80


def test_the_main_job_compares_contrast_with_both_baselines_over_enough_seeds(at_home, here):
    sizes = "batch = 2\ncontext = 8\nsteps = 2\nlayers = 2\n"
    (at_home / "short.toml").write_text(f"epochs = 2\nwarmup = 1\n[options]\n{sizes}")
    code, output, _ = here("search", "--config", "short.toml", "--jobs", "1", "--json")
    assert code == 0
    told = json.loads(output)
    assert told["measure"] == "test loss"
    seeds = 8
    assert len(told["runs"]) == 3 * seeds > 3 * ENOUGH
    assert {(pair["strategy"], pair["other"], pair["pairs"]) for pair in told["pairs"]} >= {
        ("contrast", "random", seeds),
        ("contrast", "ranked_random", seeds),
    }
    assert not any("Too few seeds" in remark["text"] for remark in told["verdict"])


def test_every_step_of_a_search_is_a_line(digits):
    folder, _ = digits
    lines = list(read_journal(folder / "runs/digits-advantage/runs/advantage-0/metrics.jsonl"))
    assert [line["phase"] for line in lines[:4]] == ["weights", "architecture"] * 2
    assert len(lines) == 2 * 2 * 21  # two epochs after the warm-up


def test_a_finished_search_is_shown_again_and_not_run_again(digits, here, monkeypatch):
    folder, answer = digits
    monkeypatch.chdir(folder)
    before = read_results(folder / "runs/digits-advantage")
    code, output, _ = here("search", *DIGITS, "--resume", "--json")
    assert code == 0
    assert json.loads(output)["runs"] == json.loads(answer.stdout)["runs"]
    assert read_results(folder / "runs/digits-advantage") == before


def test_changed_settings_are_refused_by_name(digits, here, monkeypatch):
    monkeypatch.chdir(digits[0])
    code, _, error = here("search", *DIGITS, "--resume", "--epochs", "4")
    assert code == 2
    assert "epochs is 4 now and was 3" in error


def test_slopes_that_contradict_measured_swaps_are_a_line_of_the_verdict(at_home, here, monkeypatch):
    against = CreditCheck("advantage", False, (Swap("middle", "skip", "mlp", 1.0, -1.0),) * 8)
    monkeypatch.setattr(loop, "plan_squares", lambda search, length: 8)
    monkeypatch.setattr(loop, "check_credit", lambda search, loss_of, squares: against)
    quick = ["--epochs", "2", "--seeds", "1", "--jobs", "1"]
    code, output, _ = here("search", "my_searches:make_search", *quick)
    assert code == 0
    told = " ".join(output.split())
    assert "The slopes of advantage contradict measured swaps at 1 of 1 decisions" in told
    assert 'Write strategy="contrast".' in told


SHOWS_NOTHING = re.compile("Little can be learnt here|Too few trainings to tell whether architectures differ")
COPIES = """
import torch, advnas
from torch import nn
from torch.nn import functional as F


def make_search(strategy, seed):
    torch.manual_seed(seed)
    x = torch.randn(64, 4)
    pairs = list(zip(x.split(8), x.sum(1, keepdim=True).split(8)))
    layers = [advnas.Choice({name: nn.Linear(4, 4) for name in "abc"}, name=place) for place in "xy"]
    loss = lambda model, batch: F.mse_loss(model(batch[0]), batch[1])
    search = advnas.Search(nn.Sequential(*layers, nn.Linear(4, 1)), strategy, seed=seed)
    return search, advnas.Task(pairs, pairs, loss)
"""


def test_the_diagnosis_of_copies_of_one_operation_shows_no_difference(at_home, here, monkeypatch):
    (at_home / "copies.py").write_text(COPIES)
    monkeypatch.syspath_prepend(str(at_home))
    asked = ["search", "copies:make_search", "--folder", "r", "--epochs", "2", "--seeds", "1", "--jobs", "1"]
    code, output, _ = here(*asked, "--diagnose")
    assert code == 0
    assert SHOWS_NOTHING.search(" ".join(output.split()))
    assert json.loads((at_home / "r/agreement.json").read_text())["differ"] is False
    code, again, _ = here("search", "--resume", "--folder", "r", "--diagnose")
    assert code == 0
    assert SHOWS_NOTHING.search(" ".join(again.split()))


def test_a_task_with_a_study_of_its_own_cannot_be_diagnosed(at_home, here):
    code, _, error = here("search", "--task", "penn_treebank", "--diagnose")
    assert code == 2
    assert "Leave out --diagnose" in error


def test_a_second_search_gets_a_folder_of_its_own(at_home, here):
    for _ in range(2):
        assert here("search", "my_searches:make_search", "--epochs", "2", "--seeds", "1", "--jobs", "1")[0] == 0
    assert sorted(path.name for path in Path("runs").iterdir()) == [
        "make_search-contrast",
        "make_search-contrast-2",
    ]
    code, _, error = here("search", "my_searches:make_search", "--folder", "runs/make_search-contrast")
    assert code == 2
    assert "Add --resume" in error


def test_an_own_network_is_searched_by_the_options_of_a_file(at_home, here):
    Path("my.toml").write_text(
        'entry = "my_searches:make_search"\nstrategy = "gdas"\nepochs = 4\nseeds = 1\njobs = 1\n'
        'folder = "found"\n[options]\nwidth = 6\n'
    )
    code, output, _ = here("search", "--config", "my.toml", "--json", "--retrain-epochs", "1")
    told = json.loads(output)
    assert (code, told["folder"], told["measure"]) == (0, "found", "validation accuracy")
    result = read_results(Path("found"))[0]
    assert result["operation_sizes"] == {"middle": {"skip": 0, "mlp": 2 * (6 * 6 + 6)}}
    assert result["evaluation"]["best_epoch"] == 1
    page = Path("found/report/index.html").read_text()
    assert "middle" in page  # decisions that are no graph stand in a table


# Get it out

ALONE = """
import sys
sys.modules["advnas"] = None
import torch
x = torch.load("example.pt")
if sys.argv[1].endswith(".onnx"):
    import onnxruntime
    session = onnxruntime.InferenceSession(sys.argv[1])
    output = torch.as_tensor(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])
else:
    output = torch.export.load(sys.argv[1]).module()(x)
torch.save(output, "output.pt")
"""


@pytest.mark.parametrize("weights", ["retrained", "inherited"])
@pytest.mark.parametrize("to", ["pt2", "onnx"])
def test_exported_files_agree_with_the_searched_network_where_there_is_no_advnas(
    to, weights, digits, here, monkeypatch
):
    from advnas.answers.batch_norm import reestimate_batch_norm
    from advnas.modes import evaluating
    from advnas.randomness import seed_of
    from advnas.records.checkpoints import load_state
    from advnas.studies.built_in import make_search

    folder, _ = digits
    monkeypatch.chdir(folder)
    code, output, _ = here(
        "export", "runs/digits-advantage", "--to", to, "--weights", weights, "--run", "advantage-1"
    )
    assert code == 0
    assert ("searched network" in output) == (weights == "inherited")
    search, task = make_search("advantage", 1, task="digits")
    evaluation = read_results(Path("runs/digits-advantage"))[1]["evaluation"]
    where = Path("runs/digits-advantage/runs/advantage-1/evaluation")
    x = task.test[0][0][:7]
    if weights == "retrained":
        network = search.derive(evaluation["architecture"])
        network.load_state_dict(load_state(where / "retrained.pt"))
        expected = network.eval()(x)
    else:
        search.model.load_state_dict(load_state(where / "searched.pt"))
        with search.space.running(evaluation["architecture"]), torch.random.fork_rng():
            torch.manual_seed(seed_of(1, 4))
            reestimate_batch_norm(search.model, task.training, task.loss)
            with evaluating(search.model):
                expected = search.model(x)
    torch.save(x, "example.pt")
    path = f"runs/digits-advantage/export/advantage-1-{weights}/model.{to}"
    subprocess.run([sys.executable, "-c", ALONE, path], check=True)
    assert (torch.load("output.pt") - expected).abs().max() <= 1e-5


def test_the_answer_that_validates_best_is_exported_unless_told_otherwise(digits, here, monkeypatch):
    monkeypatch.chdir(digits[0])
    results = read_results(Path("runs/digits-advantage"))
    best = min(results[:2], key=lambda result: result["evaluation"]["validation_score"])
    assert [result["strategy"] for result in results[:2]] == ["advantage"] * 2
    code, output, _ = here("export", "runs/digits-advantage", "--to", "plain")
    assert code == 0
    assert f"advantage-{best['seed']}-retrained/weights." in output
    code, _, error = here("export", "runs/digits-advantage", "--run", "advantage-7")
    assert code == 2
    assert "no finished run 'advantage-7' (did you mean" in error


def test_an_answer_is_retrained_for_longer(digits, here, monkeypatch):
    monkeypatch.chdir(digits[0])
    code, output, _ = here("retrain", "runs/digits-advantage", "--epochs", "1", "--run", "random-0", "--seed", "5")
    assert code == 0
    assert output.startswith("test accuracy: ")
    assert Path("runs/digits-advantage/retrained/random-0-1-5/retrained.pt").exists()


# Stop and go


def test_a_stopped_search_ends_as_if_it_had_not_been(tmp_path):
    command = [
        sys.executable,
        "-m",
        "advnas",
        "search",
        "my_searches:make_search",
        "--epochs",
        "30",
        "--retrain-epochs",
        "2",
        "--seeds",
        "1",
    ]
    environment = os.environ | {"PYTHONPATH": str(HERE)}
    subprocess.run([*command, "--folder", "whole"], cwd=tmp_path, env=environment, check=True, capture_output=True)
    process = subprocess.Popen(
        [*command, "--folder", "stopped"], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    )
    metrics = tmp_path / "stopped/runs/contrast-0/metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.stat().st_size > 2000):
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert "stopped and saved. Go on with: advnas search --resume --folder stopped" in error
    assert not (tmp_path / "stopped/runs/contrast-0/result.json").exists()
    again = [sys.executable, "-m", "advnas", "search", "--resume", "--folder", "stopped"]
    subprocess.run(again, cwd=tmp_path, env=environment, check=True, capture_output=True)
    for file in ("metrics.jsonl", "records.jsonl"):
        whole, stopped = (
            (tmp_path / name / "runs/contrast-0" / file).read_bytes() for name in ("whole", "stopped")
        )
        assert whole == stopped
    whole, stopped = (read_results(tmp_path / name) for name in ("whole", "stopped"))
    assert [result["evaluation"] for result in whole] == [result["evaluation"] for result in stopped]


# What cannot work


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "digit"], "no task 'digit' (did you mean 'digits'?)"),
        (["--space", "darts201"], "space"),
        (["--strategy", "adventage"], "did you mean 'advantage'"),
        (["--epochs", "0"], "--epochs must be a positive integer"),
        (["--epochs", "4", "--warmup", "4"], "warmup must leave epochs for theta: it is 4 of 4"),
        (["--seeds", "0"], "--seeds must be"),
        (["--jobs", "0"], "--jobs must be a positive integer, got 0"),
        (["--device", "abacus"], "device 'abacus' cannot be used here"),
        (["--precision", "int8"], "precision must be one of float32"),
        (
            ["--answer", "refine"],
            "--answer must be one of argmax, process_best, ranked, refined, got 'refine' (did",
        ),
        (["--task", "penn_treebank", "--answer", "refined"], "knows no --answer"),
        (
            ["--strategy", "darts", "--answer", "process_best"],
            "darts mixes operations and draws no architecture, so that no process_best is known. Write --answer "
            "argmax or ranked or refined",
        ),
        (["my_searches:make_search_that_has_run"], "returns a Search that has taken 4 weight steps and 0 of theta"),
        (["my_searches:make_search", "--task", "digits"], "brings its own task"),
        (["my_searches"], "module:function"),
        (["my_searchs:make_search"], "no module 'my_searchs'"),
        (["my_searches:make_serach"], "has no 'make_serach'"),
        (["my_searches:not_a_function"], "not a function"),
        (["my_searches:make_something_else"], "must return a search and its task, got Search"),
        (["--task", "penn_treebank", "--device", "cuda"], "knows no --device"),
        (["--config", "nowhere.toml"], "nowhere.toml"),
    ],
)
def test_what_cannot_work_is_said_in_a_sentence_before_anything_runs(arguments, message, at_home, here):
    code, _, error = here("search", *arguments)
    assert code == 2
    assert error.startswith("advnas: ")
    assert message in error
    assert not Path("runs").exists()


def test_the_users_function_is_called_twice_to_check_once_per_run_and_twice_per_retraining(at_home, here):
    command = ["search", "my_searches:make_noted_search", "--epochs", 3, "--warmup", 1, "--jobs", 1, "--seeds", 2]
    assert here(*command, "--folder", "found")[0] == 0
    calls = Path("calls.txt").read_text().splitlines()
    check = ["contrast 0", f"contrast {seed_of(0, 2) % 2**31}"]  # as for a run, and as for fresh weights
    names = ("contrast", "random", "ranked_random", "random")  # the last for the warm-ups
    runs = [f"{name} {seed}" for name in names for seed in (0, 1)]
    retrainings = ["random 0", "random 1"] * 3  # whoever made the network: only its architecture counts
    retrainings += [f"random {seed_of(seed, 2) % 2**31}" for seed in (0, 1)] * 3  # for the fresh weights
    assert sorted(calls) == sorted(check + runs + retrainings)
    Path("calls.txt").unlink()
    assert here("search", "my_searches:make_noted_search", "--resume", "--folder", "found")[0] == 0
    assert Path("calls.txt").read_text().splitlines() == check


def test_the_answer_can_be_refined_by_the_shared_weights(at_home, here):
    command = ["search", "my_searches:make_search", "--epochs", 3, "--warmup", 1, "--jobs", 1, "--seeds", 1]
    code, _, _ = here(*command, "--answer", "refined", "--folder", "found")
    assert code == 0
    result = json.loads(Path("found/runs/contrast-0/result.json").read_text())
    assert result["evaluation"]["by"] == "refined"
    assert result["evaluation"]["architecture"] == result["refined"]["architecture"]
    page = Path("found/report/index.html").read_text()
    assert "argmax refined by the shared weights" in page
    assert "<dt>answer</dt> <dd>refined</dd>" in page
    assert "<dd>None</dd>" not in page  # what was not asked for is not told


# The folder of a search in Python


@pytest.fixture
def plain_run(at_home):
    from my_searches import make_search

    search, task = make_search("advantage", 3)
    search.run(task, epochs=3, warmup=1, folder="r")
    return dict(search.argmax())


def test_a_search_in_python_is_reported(plain_run, here):
    code, output, _ = here("report", "r")
    assert code == 0
    page = Path("r/report/index.html").read_text()
    assert "wrote r/report/index.html" in output
    assert "Whether its answer beats chance was not tested here" in page
    assert plain_run["middle"] in page


def test_a_search_in_python_is_retrained_and_exported(plain_run, here):
    entry = ["--entry", "my_searches:make_search"]
    code, output, _ = here("export", "r", "--to", "plain", "--weights", "inherited", *entry)
    assert code == 0
    assert "wrote r/export/advantage-3-inherited/" in output
    assert "searched network by at most 0." in output
    code, _, error = here("export", "r", *entry)
    assert code == 2
    assert "was not retrained. Write `advnas retrain r --epochs N` first" in error
    code, _, error = here("retrain", "r", *entry)
    assert code == 2
    assert "r is of a Search.run, whose answer was not retrained. Add --epochs N." in error
    code, output, _ = here("retrain", "r", "--epochs", 2, *entry)
    assert code == 0
    assert "wrote r/retrained/advantage-3-2-3/retrained.pt" in output
    assert here("export", "r", "--to", "plain", *entry)[0] == 0


def test_a_search_in_python_needs_to_be_told_where_its_network_comes_from(plain_run, here):
    code, _, error = here("retrain", "r")
    assert code == 2
    assert "Add --entry module:function" in error
