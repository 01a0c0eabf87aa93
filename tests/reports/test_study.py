import csv
import io
import json

import numpy as np
import pytest

from advnas.reports.study import process_best, read_study
from advnas.reports.tables import (
    paper_numbers,
    run_numbers,
    runs_csv,
    spread,
    study_markdown,
    study_table,
    summary_csv,
)


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


def test_numbers_of_a_run(study_folder, accuracies):
    run = read_study(study_folder).of("advantage")[1]
    numbers = run_numbers(run, accuracies)
    assert numbers["argmax_accuracy"] == accuracies.accuracy(run.result.argmax)
    assert numbers["process_best_params"] == accuracies.entry(process_best(run.result)).params
    assert numbers["regret"] == accuracies.regret(run.result.argmax)
    assert numbers["seconds"] == run.result.seconds
    assert numbers["saved_mib"] == run.result.saved_bytes / 2**20


def test_the_argmax_of_random_search_is_no_number(study_folder, accuracies):
    run = read_study(study_folder).of("random")[0]
    numbers = run_numbers(run, accuracies)
    assert numbers["argmax_accuracy"] is None
    assert numbers["percentile"] == accuracies.percentile(process_best(run.result))


def test_without_a_table_the_costs_are_still_known(study_folder):
    run = read_study(study_folder).runs[0]
    known = {key for key, value in run_numbers(run, None).items() if value is not None}
    assert known == {"seconds", "saved_mib"}


def test_the_spread_is_that_of_the_population():
    values = [90.0, 93.0, None, 94.0]
    assert spread(values) == pytest.approx((np.mean([90, 93, 94]), np.std([90, 93, 94])))
    assert spread([None]) is None


@pytest.mark.parametrize(("zero", "mean"), [(False, 93.76), (True, 93.63)])
def test_the_paper_is_quoted_for_the_same_space(zero, mean, write_study, tmp_path):
    study = read_study(write_study(tmp_path, zero=zero))
    assert paper_numbers(study, "advantage")["argmax_accuracy"].mean == mean
    assert paper_numbers(study, "random") == {}
    assert "process_best_accuracy" not in paper_numbers(study, "proxyless")


def test_the_table_is_of_finished_runs_next_to_the_paper(study_folder, accuracies):
    study = read_study(study_folder)
    table = study_table(study, accuracies)
    advantage, proxyless, darts, random = table.rows
    assert advantage.values[0].paper == "93.76 ± 0.00"
    assert (proxyless.runs, proxyless.in_paper) == ("1 of 2", True)
    assert (darts.runs, darts.in_paper) == ("2", False)
    assert random.values[0].ours == ""


def test_columns_that_nobody_has_a_number_for_are_left_out(study_folder):
    assert [column.key for column in study_table(read_study(study_folder), None).columns] == [
        "seconds",
        "saved_mib",
    ]


def test_the_markdown_table_has_a_column_of_the_paper_beside_ours(study_folder, accuracies):
    lines = study_markdown(study_table(read_study(study_folder), accuracies)).splitlines()
    assert lines[0].startswith(
        "| strategy | runs | accuracy of the argmax [%] | paper | its parameters [M] | paper |"
    )
    assert len({line.count("|") for line in lines}) == 1
    assert "| 93.76 ± 0.00 |" in lines[2]


def test_the_spreadsheet_of_runs_has_plain_numbers(study_folder, accuracies):
    study = read_study(study_folder)
    lines = list(csv.DictReader(io.StringIO(runs_csv(study, accuracies))))
    assert [(line["strategy"], line["seed"]) for line in lines] == [
        (run.strategy, str(run.seed)) for run in study.runs
    ]
    assert float(lines[0]["regret"]) == run_numbers(study.runs[0], accuracies)["regret"]
    assert [line["finished"] for line in lines] == ["1", "1", "1", "0", "1", "1", "1", "1"]
    assert lines[-1]["argmax_accuracy"] == ""


def test_the_summary_has_one_line_a_strategy(study_folder, accuracies):
    study = read_study(study_folder)
    lines = list(csv.DictReader(io.StringIO(summary_csv(study, accuracies))))
    assert [line["strategy"] for line in lines] == list(study.strategies)
    assert float(lines[0]["seconds_mean"]) == pytest.approx(np.mean([run.result.seconds for run in study.runs[:2]]))
    assert float(lines[0]["paper_process_best_params_std"]) == 0.11
    assert (lines[1]["runs"], lines[1]["finished"]) == ("2", "1")
