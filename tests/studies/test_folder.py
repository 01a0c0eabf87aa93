import dataclasses
import json

import pytest

from advnas.paper.toy import ToySettings
from advnas.studies.folder import Results, claim_folder, load_results, read_settings
from advnas.studies.own_network import OwnNetworkSettings, OwnNetworkStudy

SETTINGS = ToySettings(iterations=20, trials=2)
ROWS = {"advantage": [[1.5, 2.5], [0.1, 0.0]], "random": [[3.0, 1e-12], [2.0, 1 / 3]]}
MADE = {name: {"command": "advnas experiment toy", "time": "now"} for name in ROWS}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "results.json"
    Results(SETTINGS, ROWS, MADE).save(path)
    return path


def claim(folder):
    claim_folder(folder, OwnNetworkStudy(OwnNetworkSettings("module:function")))


def tamper(path, change):
    content = json.loads(path.read_text())
    path.write_text(json.dumps(change(content)))


def test_what_is_saved_is_loaded(path):
    loaded = load_results(path, SETTINGS)
    assert loaded == Results(SETTINGS, ROWS, MADE)
    assert list(loaded.rows) == list(ROWS)


def test_saving_twice_writes_the_same_bytes(path):
    before = path.read_bytes()
    load_results(path, SETTINGS).save(path)
    assert path.read_bytes() == before


def test_saving_makes_the_folder_and_leaves_nothing_else_there(tmp_path):
    path = tmp_path / "a" / "b" / "results.json"
    Results(SETTINGS, ROWS, MADE).save(path)
    assert [entry.name for entry in path.parent.iterdir()] == ["results.json"]


def test_where_there_is_no_file_there_are_no_results(tmp_path):
    assert load_results(tmp_path / "results.json", SETTINGS) == Results(SETTINGS, {}, {})


@pytest.mark.parametrize(
    ("name", "value", "was"),
    [
        ("iterations", 30, "20"),
        ("trials", 3, "2"),
        ("seed", 1, "0"),
        ("learning_rate", 0.01, "0.001"),
        ("betas", (0.5, 0.999), r"\(0.9, 0.999\)"),
    ],
)
def test_other_settings_are_refused_by_name(path, name, value, was):
    before = path.read_bytes()
    with pytest.raises(
        ValueError, match=rf"results\.json was made by other settings: {name} is .* now and was {was}\."
    ):
        load_results(path, dataclasses.replace(SETTINGS, **{name: value}))
    assert path.read_bytes() == before


@pytest.mark.parametrize("read", [lambda folder: read_settings(folder, ToySettings), claim])
def test_a_damaged_study_says_what_is_wrong_with_it(tmp_path, read):
    (tmp_path / "study.json").write_text("{")
    with pytest.raises(
        ValueError, match=r"study\.json is not JSON: '\{'.* Restore the file, or give another --folder\.$"
    ):
        read(tmp_path)


def test_all_changed_settings_are_named(path):
    with pytest.raises(ValueError, match="iterations is 30 now and was 20; seed is 4 now and was 0"):
        load_results(path, dataclasses.replace(SETTINGS, iterations=30, seed=4))


@pytest.mark.parametrize(
    "change",
    [
        lambda content: [],
        lambda content: {},
        lambda content: 7,
        lambda content: {**content, "rows": None},
        lambda content: {**content, "rows": [1, 2]},
        lambda content: {**content, "provenance": 3},
        lambda content: {**content, "settings": {**content["settings"], "extra": 1}},
        lambda content: {**content, "settings": {**content["settings"], "iterations": "many"}},
        lambda content: {**content, "settings": {**content["settings"], "trials": 0}},
        lambda content: {**content, "settings": {**content["settings"], "betas": [0.9]}},
        lambda content: {key: content[key] for key in ("settings", "rows")},
    ],
    ids=[
        "a list",
        "nothing",
        "a number",
        "no rows",
        "rows without names",
        "no provenance",
        "extra setting",
        "text for a number",
        "impossible setting",
        "short tuple",
        "missing part",
    ],
)
def test_a_tampered_file_is_refused(path, change):
    tamper(path, change)
    with pytest.raises(ValueError, match=r"results\.json is not a results file of this study .*another --folder"):
        load_results(path, SETTINGS)


@pytest.mark.parametrize("text", ["", "{", '{"settings": ', "\x00"])
def test_a_torn_file_is_refused(path, text):
    path.write_text(text)
    with pytest.raises(ValueError, match="is not a results file of this study"):
        load_results(path, SETTINGS)


def test_bytes_that_are_no_text_are_refused(path):
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="is not a results file of this study"):
        load_results(path, SETTINGS)
