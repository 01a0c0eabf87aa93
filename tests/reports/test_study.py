import csv
import io
import json

import numpy as np
import pytest

from advnas.reports.contents import process_best
from advnas.reports.study import read_study
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
    assert study.name == "cifar10"
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


def test_the_spread_is_the_sample_standard_deviation():
    values = [90.0, 93.0, None, 94.0]
    assert spread(values) == pytest.approx((np.mean([90, 93, 94]), np.std([90, 93, 94], ddof=1)))
    assert spread([90.0, None]) == (90.0, None)
    assert spread([90.0]).written(2) == "90.00"
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


@pytest.mark.parametrize(
    ("said", "table"),
    [
        ({"table": "nasbench_macro"}, "nasbench_macro"),
        ({"table": None}, None),
        ({"retrains": False}, "nasbench201"),
        ({"retrains": True}, None),
        ({}, "nasbench201"),
    ],
    ids=["named", "none", "unnamed", "retrained", "before both"],
)
def test_a_study_says_which_table_judges_it_and_older_ones_had_but_one(write_study, tmp_path, said, table):
    folder = write_study(tmp_path, seeds=1, records=2)
    about = json.loads((folder / "study.json").read_text())
    del about["retrains"]
    (folder / "study.json").write_text(json.dumps(about | said))
    study = read_study(folder)
    assert (study.table, study.retrains) == (table, table is None)


def test_what_retraining_has_shown_is_read(ptb_folder):
    study = read_study(ptb_folder)
    advantage, gdas = study.of("advantage")[0], study.of("gdas")[0]
    assert (study.retrains, study.with_zero) == (True, True)
    assert (advantage.evaluation.by, advantage.evaluation.best_epoch) == ("argmax", 97)
    assert advantage.answer(advantage.latest) == advantage.evaluation.architecture == advantage.result.argmax
    assert gdas.evaluation.by == "process best"
    assert gdas.answer(gdas.latest) == process_best(gdas.result) != gdas.result.argmax


def test_an_unfinished_search_answers_as_the_paper_would_take_it(ptb_folder):
    (run,) = read_study(ptb_folder).unfinished
    assert run.evaluation is None
    assert run.answer(run.latest) == process_best(run.records[-1])


def test_the_same_strategy_answers_by_its_argmax_where_a_table_judges(write_study, tmp_path):
    run = read_study(write_study(tmp_path, ("gdas",), seeds=1)).runs[0]
    assert run.answer(run.latest) == run.result.argmax


@pytest.mark.parametrize("evaluation", [{}, None])
def test_an_empty_evaluation_is_none(evaluation, write_study, tmp_path):
    rewrite(write_study(tmp_path, experiment="ptb") / "runs/advantage-0/result.json", evaluation=evaluation)
    assert [run.evaluation is None for run in read_study(tmp_path).runs] == [True, False, False, False]


def test_a_search_tells_what_its_answers_are_judged_by(write_study, tmp_path):
    folder = write_study(tmp_path, ("advantage",), seeds=1, experiment="search")
    measures = [{"name": "test accuracy", "value": 97.5, "more_is_better": True}]
    cell = {"0->1": "skip_connect"}
    judged = {"by": "argmax", "architecture": cell, "measures": measures, "validation_score": 0.1}
    judged |= {"parameters": 10, "best_epoch": 1}
    rewrite(folder / "runs/advantage-0/result.json", evaluation=judged)
    study = read_study(tmp_path)
    assert study.runs[0].evaluation.measures == study.measures
    assert [column.heading for column in study_table(study, None).columns][:2] == [
        "test accuracy",
        "parameters [M]",
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"by": "chance"}, "by"),
        ({"test_perplexity": "low"}, r"float @ \$\.evaluation\.measures\[1\]\.value"),
        ({"architecture": 3}, r"architecture"),
        ({"accuracy": 93.0}, r"extra fields found.*accuracy"),
    ],
)
def test_a_broken_evaluation_is_refused(change, message, write_study, tmp_path):
    path = write_study(tmp_path, seeds=1, experiment="ptb") / "runs/advantage-0/result.json"
    rewrite(path, evaluation=json.loads(path.read_text())["evaluation"] | change)
    with pytest.raises(ValueError, match=rf"result\.json cannot be read.*{message}"):
        read_study(tmp_path)


def test_the_table_of_perplexities_stands_next_to_the_paper(ptb_folder):
    study = read_study(ptb_folder)
    table = study_table(study, None)
    evaluations = [run.evaluation for run in study.of("advantage")]
    assert [column.heading for column in table.columns] == [
        "validation perplexity",
        "test perplexity",
        "parameters [M]",
        "search time [s]",
        "saved activations [MiB]",
    ]
    advantage, _, gdas, random = table.rows
    for place, (values, paper) in enumerate(
        [
            ([found.measures[0].value for found in evaluations], "94.90 ± 0.18"),
            ([found.measures[1].value for found in evaluations], "91.18 ± 0.13"),
            ([found.parameters / 1e6 for found in evaluations], "7.44 ± 0.00"),
        ]
    ):
        assert advantage.values[place][:2] == (f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}", paper)
    assert (advantage.answer, gdas.answer, gdas.runs) == ("argmax", "process best", "1 of 2")
    assert (random.answer, random.in_paper) == ("process best", False)


@pytest.mark.parametrize(
    ("strategy", "printed"),
    [
        ("reinforce", ["99.48 ± 1.51", "95.50 ± 1.73", "7.40 ± 0.07"]),
        ("parsec", ["99.68 ± 1.49", "95.51 ± 1.01", "7.33 ± 0.09"]),
        ("proxyless", ["95.12 ± 0.22", "90.76 ± 0.23", "7.33 ± 0.09"]),
        ("gdas", ["99.28 ± 2.00", "95.40 ± 2.01", "7.33 ± 0.09"]),
        ("advantage", ["94.90 ± 0.18", "91.18 ± 0.13", "7.44 ± 0.00"]),
        ("random", []),
    ],
)
def test_the_perplexities_of_the_paper(strategy, printed, ptb_folder):
    assert [found.written(2) for found in paper_numbers(read_study(ptb_folder), strategy).values()] == printed


def test_the_markdown_of_perplexities_tells_the_answer_and_what_cannot_be_compared(ptb_folder, study_folder):
    lines = study_markdown(study_table(read_study(ptb_folder), None)).splitlines()
    assert lines[0].startswith("| strategy | answer | runs | validation perplexity | paper | test perplexity |")
    assert len({line.count("|") for line in lines[:-2]}) == 1
    assert lines[2].startswith("| advantage | argmax | 2 | ")
    assert "cannot be compared" in lines[-1]
    assert "compared" not in study_markdown(study_table(read_study(study_folder), None))


def test_the_spreadsheets_of_perplexities_tell_the_answer(ptb_folder):
    study = read_study(ptb_folder)
    runs = list(csv.DictReader(io.StringIO(runs_csv(study, None))))
    assert float(runs[0]["validation_perplexity"]) == study.runs[0].evaluation.measures[0].value
    assert float(runs[0]["params"]) == study.runs[0].evaluation.parameters / 1e6
    assert [run["answer"] for run in runs] == [run.evaluation.by if run.evaluation else "" for run in study.runs]
    summary = list(csv.DictReader(io.StringIO(summary_csv(study, None))))
    assert (summary[0]["answer"], float(summary[0]["paper_test_perplexity_std"])) == ("argmax", 0.13)
    assert summary[-1]["paper_validation_perplexity_mean"] == ""


def test_a_study_that_looks_answers_up_does_not_speak_of_retraining(study_folder, accuracies):
    study = read_study(study_folder)
    assert not study_table(study, accuracies).tells_answers
    headers = (written(study, accuracies).splitlines()[0].split(",") for written in (runs_csv, summary_csv))
    assert all("answer" not in header for header in headers)


def test_a_strategy_may_have_given_both_answers(write_study, tmp_path):
    path = write_study(tmp_path, ("random",), experiment="ptb") / "runs/random-1/result.json"
    rewrite(path, evaluation=json.loads(path.read_text())["evaluation"] | {"by": "argmax"})
    assert study_table(read_study(tmp_path), None).rows[0].answer == "argmax / process best"


def test_a_diverged_model_has_no_spread():
    mean, std = spread([95.0, float("inf")])
    assert (mean, np.isnan(std)) == (np.inf, True)
