"""`advnas export` and `advnas retrain`: whose weights they take and write."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

HERE = Path(__file__).parent
SHORT = ["--epochs", 2, "--warmup", 1, "--retrain-epochs", 1, "--seeds", 1, "--jobs", 1, "--folder", "r"]


@pytest.fixture
def at_home(tmp_path, monkeypatch):
    """A folder to work in, from where the entry points can be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(HERE))
    return tmp_path


def test_export_takes_the_newest_retraining_and_says_whose_weights_they_are(at_home, here):
    def exported():
        code, output, _ = here("export", "r", "--to", "plain")
        assert code == 0
        return output, load_file("r/export/contrast-0-retrained/weights.safetensors")

    def are_of(weights, path):
        trained = torch.load(path, weights_only=True)
        return all(torch.equal(weights[name], trained[name]) for name in weights)

    assert here("search", "my_searches:make_search", *SHORT)[0] == 0
    output, weights = exported()
    assert "the retraining for 1 epoch with seed 0: r/runs/contrast-0/evaluation/retrained.pt" in output
    assert are_of(weights, "r/runs/contrast-0/evaluation/retrained.pt")
    assert here("retrain", "r", "--epochs", 3, "--seed", 7)[0] == 0
    Path("r/retrained/contrast-0-copy").mkdir()  # somebody's own
    Path("r/retrained/contrast-0-copy/retrained.pt").touch()
    output, weights = exported()
    assert "the retraining for 3 epochs with seed 7: r/retrained/contrast-0-3-7/retrained.pt" in output
    assert are_of(weights, "r/retrained/contrast-0-3-7/retrained.pt")
    for command in ("export", "retrain"):
        code, _, error = here(command, "r/runs/contrast-0", "--entry", "my_searches:make_search")
        assert code == 2
        assert f"Write: advnas {command} {at_home / 'r'} --run contrast-0" in error
    _, output, _ = here("export", "r", "--to", "plain", "--weights", "inherited")
    assert "those that the answer has in the searched network of contrast-0" in output


def test_the_answer_that_is_told_is_exported_whatever_strategy_was_asked_for_last(at_home, here):
    assert here("search", "my_searches:make_search", *SHORT)[0] == 0
    code, output, _ = here("search", "--resume", "--folder", "r", "--strategy", "gdas", "--json")
    assert code == 0
    run = json.loads(output)["answer"]["run"]
    page = Path("r/report/index.html").read_text()
    assert f"advnas export r --run {run}" in page
    assert f"advnas retrain r --run {run}" in page
    assert (
        f"those of the retraining for 1 epoch with seed 0: r/runs/{run}/" in here("export", "r", "--to", "plain")[1]
    )


NAMED = """
import torch
from torch import nn
from torch.nn import functional as F

import advnas


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        rivals = {"skip": nn.Identity(), "linear": nn.Linear(4, 4)}
        self.body = nn.Sequential(advnas.Choice(rivals, name="c"), nn.Linear(4, 1))

    def forward(self, features=None, scale=1.0):
        return scale * self.body(features)


def make(strategy, seed, **more):
    torch.manual_seed(seed)
    pairs = [(x, x.sum(1, keepdim=True)) for x in torch.randn(4, 8, 4)]
    loss = lambda model, batch: F.mse_loss(model(features=batch[0], **more), batch[1])
    return advnas.Search(Named(), strategy, seed=seed), advnas.Task(pairs[:2], pairs[2:], loss)


def make_scaled(strategy, seed):
    return make(strategy, seed, scale=0.5)
"""


def test_a_network_that_is_called_with_tensors_by_name_is_limited_and_exported(at_home, here, monkeypatch):
    (at_home / "named.py").write_text(NAMED)
    monkeypatch.syspath_prepend(str(at_home))
    code, output, _ = here("search", "named:make", *SHORT, "--limit", "multiply_adds=4")
    assert code == 0
    assert "c: skip" in output
    assert "Get it out:  advnas export r --to pt2" in output
    assert here("export", "r")[0] == 0


def test_an_export_that_cannot_work_is_not_advertised(at_home, here, monkeypatch):
    (at_home / "named.py").write_text(NAMED)
    monkeypatch.syspath_prepend(str(at_home))
    code, output, _ = here("search", "named:make_scaled", *SHORT)
    assert code == 0
    assert "(features: Tensor, scale: float), which a file cannot take" in " ".join(output.split())
    page = Path("r/report/index.html").read_text()
    assert "advnas export r" not in output + page
    assert "advnas retrain r" in page
    code, _, error = here("export", "r")
    assert code == 2
    assert "which a file cannot take" in error
