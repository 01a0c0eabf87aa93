import json

import pytest

from advnas.reports.study import process_best, read_study


def rewrite(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_folder_becomes_a_study(study_folder):
    study = read_study(study_folder)
    assert study.experiment == "cifar10"
    assert study.strategies == ("advantage", "proxyless", "darts", "random")
    assert [run.name for run in study.of("darts")] == ["darts-0", "darts-1"]
    assert [record.epoch for record in study.runs[0].records] == [8.0, 12.0, 16.0]
    assert study.runs[0].seconds[16.0] == study.runs[0].result.seconds
    assert not study.with_zero


def test_strategies_stand_in_the_house_order_and_strangers_at_the_end(write_study, tmp_path):
    write_study(tmp_path, ("random", "a-stranger", "gdas", "advantage"), seeds=1)
    assert read_study(tmp_path).strategies == ("advantage", "gdas", "random", "a-stranger")


def test_seeds_are_sorted_as_numbers(write_study, tmp_path):
    write_study(tmp_path, ("random",), seeds=11)
    assert [run.seed for run in read_study(tmp_path).runs] == list(range(11))


def test_nested_settings_are_flattened(study_folder):
    settings = read_study(study_folder).settings
    assert (settings["preset"], settings["network.channels"]) == ("small", 8)


def test_the_candidates_tell_whether_zero_could_be_chosen(write_study, tmp_path):
    assert read_study(write_study(tmp_path, zero=True)).with_zero


def test_the_answer_is_the_argmax_but_for_random_the_process_best(study_folder):
    advantage, *_, random = read_study(study_folder).runs
    assert advantage.answer(advantage.latest) == advantage.result.argmax
    assert random.answer(random.latest) == process_best(random.result) != random.result.argmax
    assert random.answer(random.records[0]) is None


def test_an_unfinished_run_is_known_by_its_last_measurement(study_folder):
    study = read_study(study_folder)
    (run,) = study.unfinished
    assert run.name == "proxyless-1"
    assert run.latest == run.records[-1]


def test_a_run_without_a_measurement_is_skipped_and_named(write_study, tmp_path):
    write_study(tmp_path)
    (tmp_path / "runs/advantage-1/records.jsonl").write_text("")
    (tmp_path / "runs/gdas-0").mkdir()
    study = read_study(tmp_path)
    assert study.skipped == ("advantage-1", "gdas-0")
    assert [run.name for run in study.runs] == ["advantage-0", "random-0", "random-1"]


def test_a_torn_last_line_costs_that_line_alone(write_study, tmp_path):
    records = write_study(tmp_path) / "runs/advantage-0/records.jsonl"
    records.write_text(records.read_text()[:-10])
    assert len(read_study(tmp_path).runs[0].records) == 2


def test_without_timing_there_are_no_seconds(write_study, tmp_path):
    (write_study(tmp_path) / "runs/advantage-0/timing.jsonl").unlink()
    assert read_study(tmp_path).runs[0].seconds == {}


def test_a_folder_without_settings_is_no_study(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no study\.json"):
        read_study(tmp_path)


def test_a_study_that_has_not_measured_anything_cannot_be_reported(tmp_path):
    (tmp_path / "study.json").write_text('{"experiment": "cifar10", "settings": {}}')
    (tmp_path / "runs/advantage-0").mkdir(parents=True)
    with pytest.raises(ValueError, match="1 runs and no measurement"):
        read_study(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", '{"experiment": 3, "settings": {}}', '{"experiment": "cifar10"}'])
def test_broken_settings_are_refused(text, tmp_path):
    (tmp_path / "study.json").write_text(text)
    with pytest.raises(ValueError, match=r"study\.json"):
        read_study(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"entropy": "high"}, r"line 1 cannot be read.*float @ \$\.entropy"),
        ({"argmax": ["0->1"]}, r"line 1 cannot be read.*mapping @ \$\.argmax"),
        ({"process_best": 3}, r"line 1 cannot be read.*process_best"),
    ],
)
def test_a_broken_measurement_is_named_with_its_line(change, message, write_study, tmp_path):
    records = write_study(tmp_path, records=1, seeds=1) / "runs/advantage-0/records.jsonl"
    rewrite(records, **change)
    records.write_text(records.read_text() + "\n")
    with pytest.raises(ValueError, match=message):
        read_study(tmp_path)


def test_a_result_in_the_wrong_folder_is_refused(write_study, tmp_path):
    rewrite(write_study(tmp_path) / "runs/advantage-0/result.json", seed=5)
    with pytest.raises(ValueError, match=r"is of advantage-5, but lies in advantage-0"):
        read_study(tmp_path)


@pytest.mark.parametrize("name", ["backup", "advantage-", "-3", "advantage-x"])
def test_a_folder_that_is_no_run_is_refused(name, write_study, tmp_path):
    (write_study(tmp_path) / "runs" / name).mkdir()
    with pytest.raises(ValueError, match="must be STRATEGY-SEED"):
        read_study(tmp_path)
