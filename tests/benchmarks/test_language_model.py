"""The benchmark of the language model on a search of seconds."""

import importlib
import json
from pathlib import Path

import pytest

from advnas.studies.execute import execute, plan
from advnas.studies.folder import claim_folder
from advnas.studies.own_network import OwnNetworkSettings, OwnNetworkStudy

ROOT = Path(__file__).parents[2]
SEEDS = (0,)


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    return importlib.import_module("language_model")


@pytest.fixture
def folder(benchmark, tmp_path, monkeypatch):
    """A study of two layers and a few steps, on the text that is everywhere."""
    monkeypatch.setenv("ADVNAS_DATA", str(tmp_path / "no data"))
    settings = OwnNetworkSettings(
        "hybrid_language_model:make_search",
        {"layers": 2, "steps": 3},
        epochs=2,
        warmup=1,
        retrain_epochs=1,
        limits={"parameters": 27_000},
    )
    study = OwnNetworkStudy(settings)
    claim_folder(tmp_path, study)
    execute(study, plan(study, ["contrast", "ranked_random", "random"], SEEDS), tmp_path)
    return tmp_path


def test_designs_and_ranked_answers_are_trained_beside_the_answers(benchmark, folder, tmp_path):
    trained = benchmark.train_all(folder)
    assert list(trained)[:4] == ["contrast", "contrast, re-ranked", "random", "ranked_random"]
    assert "attention, by hand" in trained
    assert all(tuple(results) == SEEDS for results in trained.values())
    assert all(one["parameters"] <= 27_000 for results in trained.values() for one in results.values())
    again = benchmark.train_all(folder)
    assert again == trained

    pages = tmp_path / "pages"
    pages.mkdir()
    benchmark.write_pages(folder, trained, pages)
    for name in ("language_model", "language_model_pairs", "language_model_answers"):
        table = json.loads((pages / f"{name}.json").read_text())
        assert table["source"]["command"]
        assert table["rows"]
    assert (pages / "language_model" / "designs.png").exists()


def test_an_architecture_is_written_by_layers(benchmark):
    architecture = {"mixer 0": "attention", "ffn 0": "16", "mixer 1": "none", "ffn 1": "128"}
    assert benchmark.written(architecture) == {"mixers": "`A-`", "widths": "16 128"}
