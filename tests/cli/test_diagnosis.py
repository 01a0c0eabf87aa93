"""`advnas search --diagnose`: what is checked before the search, and what stays when it fails after it."""

import json
from pathlib import Path

import pytest

from advnas.studies.own_network import OwnNetworkStudy

HERE = Path(__file__).parent
SHORT = ["--epochs", 2, "--warmup", 1, "--retrain-epochs", 1, "--seeds", 1, "--jobs", 1, "--folder", "r"]

SHIFTED = """
import torch, advnas
from torch import nn
from torch.nn import functional as F


class Shifted(nn.Module):
    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.randn(4))
        choices = [advnas.Choice({one: nn.Linear(4, 4) for one in "abc"}, name=name) for name in "xy"]
        self.body = nn.Sequential(*choices, nn.utils.parametrizations.weight_norm(nn.Linear(4, 1)))

    def forward(self, features):
        return self.body(features + self.shift)


def make_search(strategy, seed):
    torch.manual_seed(seed)
    x = torch.randn(64, 4)
    pairs = list(zip(x.split(8), x.sum(1, keepdim=True).split(8)))
    loss = lambda model, batch: F.mse_loss(model(batch[0]), batch[1])
    return advnas.Search(Shifted(), strategy, seed=seed), advnas.Task(pairs, pairs, loss)
"""


@pytest.fixture
def at_home(tmp_path, monkeypatch):
    """A folder to work in, with the network above."""
    (tmp_path / "shifted.py").write_text(SHIFTED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_network_with_weights_of_its_own_is_diagnosed(at_home, here):
    code, output, _ = here("search", "shifted:make_search", *SHORT, "--diagnose", "--json")
    assert code == 0
    found = json.loads(Path("r/agreement.json").read_text())
    assert len({*found["again"], *found["alone"]}) == 4 + 8  # every training has weights of its own
    assert found["text"] in [remark["text"] for remark in json.loads(output)["verdict"]]


def test_too_few_architectures_are_told_before_anything_runs(at_home, here):
    code, _, error = here("search", "my_searches:make_search", *SHORT, "--diagnose")
    assert code == 2
    assert "This space has 2 architectures, and a ranking needs at least 5. Leave out the diagnosis" in error
    assert not Path("r").exists()


def test_a_diagnosis_that_fails_leaves_table_verdict_and_report(at_home, here, monkeypatch):
    def fail(self, seed, load):
        raise ValueError("The diagnosis has failed.")

    monkeypatch.setattr(OwnNetworkStudy, "diagnose", fail)
    code, output, error = here("search", "shifted:make_search", *SHORT, "--diagnose", "--json")
    assert code == 2
    assert "The diagnosis has failed." in error
    assert json.loads(output)["answer"]["run"] == "contrast-0"
    assert Path("r/report/index.html").exists()
