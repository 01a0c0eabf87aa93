"""`advnas export` and `advnas retrain`: whose weights they take and write."""

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
    _, output, _ = here("export", "r", "--to", "plain", "--weights", "inherited")
    assert "those that the answer has in the searched network of contrast-0" in output
