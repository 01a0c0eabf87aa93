import base64
import html
import json
import math
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest
import torch

from advnas import Choice, Search, Task
from advnas.reports.contents import Measure
from advnas.reports.page import _leader, lead, summary, write_report
from advnas.reports.study import read_study
from advnas.search import CreditCheck, Swap

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

NASTY = '<script>alert("&")</script>'


class Elements(HTMLParser):
    """All elements of a page: (tag, attributes)."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def __getitem__(self, tag):
        return [attributes for name, attributes in self.found if name == tag]


@pytest.fixture(scope="module")
def page(report):
    return report[0].read_text()


def test_all_files_that_are_told_are_there_and_no_others(report):
    folder = report[0].parent
    assert sorted(report) == sorted(folder.iterdir())
    texts = ["index.html", "runs.csv", "summary.csv", "table.md", "pairs.csv", "pairs.md", "directions.csv"]
    assert [path.name for path in report[: len(texts)]] == texts
    assert {path.suffix for path in report[len(texts) :]} == {".png", ".svg"}
    assert len([path for path in report if path.match("cell-*.svg")]) == 8


def test_the_page_needs_nothing_beside_it(page):
    elements = Elements(page)
    sources = [attributes["src"] for attributes in elements["img"]]
    assert all(source.startswith("data:image/svg+xml;base64,") for source in sources)
    assert [attributes["href"] for attributes in elements["link"]] == ["data:,"]
    assert not {"script", "iframe", "object", "a"} & {tag for tag, _ in elements.found}
    assert not {attributes["href"][0] for attributes in elements["use"]} - {"#"}
    assert "url(" not in page.replace("url(#", "")
    assert "http" not in re.sub('base64,[^"]*', "", page)


def test_every_picture_is_a_drawing_and_says_what_it_shows(page):
    elements = Elements(page)
    plots, pictures = elements["svg"], elements["img"]
    assert (len(plots), len(pictures)) == (4 + 3, 8)
    assert all(plot["role"] == "img" and len(plot["aria-label"]) > 40 for plot in plots)
    for picture in pictures:
        drawing = base64.b64decode(picture["src"].partition(",")[2])
        assert ElementTree.fromstring(drawing).tag.endswith("svg")
        assert len(picture["alt"]) > 40
    assert any("0->1 nor_conv" in picture["alt"] for picture in pictures)


def test_headers_of_the_tables_say_what_they_head(page):
    assert {attributes.get("scope") for attributes in Elements(page)["th"]} == {"col", "row"}


def test_the_judged_measure_is_the_first_column_beside_the_strategy(ptb_page):
    table = ptb_page[ptb_page.index("<h2>Table</h2>") :]
    headings = re.findall(r"<th scope=\"col\"[^>]*>(?:<span[^>]*>)?([^<]+)", table[: table.index("</thead>")])
    assert headings[:2] == ["strategy", "validation perplexity"]
    assert headings[-2:] == ["runs", "answer"]


def test_no_identifier_is_used_twice(page):
    identifiers = [attributes["id"] for _, attributes in Elements(page).found if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))


def test_a_mean_tells_its_seeds_and_a_direction_its_rivals(page, study_folder, write_study, tmp_path):
    seconds = [run.result.seconds for run in read_study(study_folder).of("darts")]
    title = "\n".join(f"seed {seed}: {value:.1f}" for seed, value in enumerate(seconds))
    assert title in [attributes.get("title") for attributes in Elements(page)["td"]]
    folder = write_study(tmp_path, ("contrast",), seeds=1, records=2, experiment="ptb")
    run = folder / "runs/contrast-0"
    for path in (run / "records.jsonl", run / "result.json"):
        path.write_text(path.read_text().replace('"tanh"', json.dumps(NASTY)))
    step = {
        "phase": "architecture",
        "loss": 1.0,
        "architecture": {"0->1": "relu"},
        "contrasts": {"0->1": {NASTY: 1}},
    }
    (run / "metrics.jsonl").write_text(f"{json.dumps(step)}\n" * 4)
    text = write_report(folder, None)[0].read_text()
    assert "<script" not in text
    rows = [attributes["title"] for attributes in Elements(text)["tr"] if "title" in attributes]
    assert len(rows) == 6
    assert all("against identity: too seldom compared: 0 times" in row or NASTY in row for row in rows)
    assert any(f"against {NASTY}: " in row for row in rows)


def test_settings_unfinished_runs_and_origins_are_named(page):
    assert "<dt>network.channels</dt> <dd>8</dd>" in page
    assert "not in the table: proxyless-1." in page
    assert page.count("<code>0123abc</code>") == 7
    assert "93.76 ± 0.00" in page


def test_a_run_without_a_measurement_is_named(write_study, tmp_path):
    folder = write_study(tmp_path, ("random",), seeds=1, records=2)
    (folder / "runs/gdas-7").mkdir()
    write_report(folder, None)
    assert "and so left out: gdas-7." in (folder / "report/index.html").read_text()


def test_without_a_table_the_rest_is_reported(write_study, tmp_path):
    folder = write_study(tmp_path, seeds=1, records=2)
    text = write_report(folder, None)[0].read_text()
    assert "No table of accuracies was given" in text
    assert "search time" in text
    assert "accuracy of the argmax" not in text
    assert not list(folder.glob("report/accuracy*"))
    assert (folder / "report/entropy.svg").exists()


def test_what_comes_from_files_is_escaped(write_study, accuracies, tmp_path):
    strategy = NASTY.replace("/", "")
    folder = write_study(tmp_path, (strategy,), seeds=1, records=2)
    settings, result = folder / "study.json", folder / f"runs/{strategy}-0/result.json"
    for path, innocent in ((settings, "small"), (result, "0123abc")):
        path.write_text(path.read_text().replace(innocent, NASTY.replace('"', "'")))
    settings.write_text(settings.read_text().replace('"cifar10"', '"<b>cifar10"'))
    text = write_report(folder, accuracies)[0].read_text()
    assert "<script" not in text
    assert "<b>" not in text
    assert text.count("&lt;script&gt;") >= 10


def test_a_report_can_be_written_again(write_study, tmp_path):
    folder = write_study(tmp_path, ("advantage",), seeds=1, records=2)
    first = {path: path.read_bytes() for path in write_report(folder, None)}
    assert {path: path.read_bytes() for path in write_report(folder, None)} == first


def sentences(folder, accuracies):
    return " ".join(summary(read_study(folder), accuracies))


def test_the_summary_tells_the_best_mean(study_folder, accuracies):
    text = sentences(study_folder, accuracies)
    number = r"\d+\.\d\d"
    assert re.fullmatch(
        rf"\w+ has the best mean test accuracy: ({number} over 1 seed|{number} ± {number} over 2 seeds)\. "
        r"Whether it is ahead of \w+ is open: that takes 6 seeds\.",
        text,
    )


def judged_by(values):
    """One measure, one value per seed."""
    return {
        name: {seed: (Measure("accuracy", value, more_is_better=True),) for seed, value in enumerate(own)}
        for name, own in values.items()
    }


def test_the_headline_calls_a_tie_a_tie():
    close = judged_by(
        {"contrast": [90.1, 92.3, 91.0, 90.7, 93.0, 91.2], "random": [90.3, 92.1, 90.8, 90.9, 92.8, 91.3]}
    )
    assert "a tie with random: the difference is not significant" in lead(close)
    clear = judged_by(
        {"contrast": [93.1, 93.3, 93.0, 93.7, 93.2, 93.4], "random": [90.3, 91.1, 90.8, 90.9, 90.1, 91.3]}
    )
    assert "significantly ahead of random" in lead(clear)
    assert lead(judged_by({"contrast": [93.1, 93.3]})) == ""


def test_every_measure_of_the_headline_has_its_tie_and_the_digits_of_the_table():
    losses = {"contrast": [0.0601, 0.0643], "random": [0.0602, 0.0706]}
    judged = {
        name: {
            seed: (Measure("accuracy", 90.0 + seed, True), Measure("loss", value, False))
            for seed, value in enumerate(own)
        }
        for name, own in losses.items()
    }
    assert "Whether it is ahead of random is open" in lead(judged, place=1)
    measure = judged["contrast"][0][1]
    assert _leader(losses, measure) == (
        "contrast has the best mean loss (lower is better): 0.0622 ± 0.0030 over 2 seeds."
    )


def test_a_result_that_is_not_a_number_is_never_the_best():
    nan = math.nan
    judged = judged_by({"contrast": [nan, 99.0], "darts": [80.0, 81.0], "random": [90.0, 91.0]})
    measure = judged["contrast"][0][0]
    values = {name: [own[seed][0].value for seed in own] for name, own in judged.items()}
    assert _leader(values, measure).startswith("random has the best mean accuracy: 90.50")
    assert "It is" not in lead(judged_by({"contrast": [nan] * 6, "random": [1.0] * 6}))
    assert _leader({"contrast": [nan]}, measure) == "No strategy has the best mean accuracy."


def test_the_page_tells_results_that_are_not_numbers(write_study, tmp_path):
    folder = write_study(tmp_path, ("advantage", "random"), seeds=2, records=2, experiment="search")
    for path in folder.glob("runs/*/result.json"):
        result, diverged = json.loads(path.read_text()), path.parent.name.startswith("advantage")
        result["evaluation"] = {
            "by": "argmax",
            "architecture": result["argmax"],
            "measures": [{"name": "test loss", "value": math.nan if diverged else 0.5, "more_is_better": False}],
            "validation_score": math.nan if diverged else 0.5,
            "parameters": 1,
            "best_epoch": 1,
        }
        path.write_text(json.dumps(result))
    (told,) = summary(read_study(folder), None)
    assert told.startswith("random has the best mean test loss (lower is better): 0.50")
    assert told.endswith("The test loss of advantage is not a number in 2 of 2 seeds.")
    page = write_report(folder, None)[0].read_text()
    assert "advantage beats random by test loss cannot be told" in page
    assert "advnas export" not in page


def test_the_summary_says_when_random_is_the_best(write_study, accuracies, tmp_path):
    folder = write_study(tmp_path, ("proxyless", "random"), zero=True, records=9)
    assert sentences(folder, accuracies).startswith("random has the best mean")


def test_the_page_compares_accuracies_of_the_table_with_random_search(report):
    remarks = re.findall(r"<li class=\"(\w+)\">(.*beats random by test accuracy.*)</li>", report[0].read_text())
    assert [re.search("advantage|proxyless|darts", text).group() for _, text in remarks] == [
        "advantage",
        "proxyless",
        "darts",
    ]
    assert all(mark == "open" and text.startswith("Too few seeds") for mark, text in remarks)


def test_how_many_searches_went_is_folded_away(report, write_study, tmp_path):
    assert report[0].read_text().count("<details>\n<summary>How each search went") == 1
    pair = write_study(tmp_path, ("advantage", "random"), seeds=1, records=2)
    assert "How each search went" not in write_report(pair, None)[0].read_text()


def test_the_summary_says_what_cannot_be_told(write_study, accuracies, tmp_path):
    early = write_study(tmp_path / "early", ("advantage",), seeds=1, unfinished=("advantage-0",))
    assert "No run is finished yet" in sentences(early, accuracies)


def test_a_study_without_a_finished_run_is_reported(write_study, accuracies, tmp_path):
    folder = write_study(tmp_path, ("advantage",), seeds=1, records=2, unfinished=("advantage-0",))
    text = write_report(folder, accuracies)[0].read_text()
    assert "advantage, seed 0 (unfinished)" in text
    assert "<td>0 of 1</td>" in text


@pytest.fixture(scope="module")
def ptb_page(ptb_report):
    return ptb_report[0].read_text()


def test_the_page_of_a_study_that_retrains(ptb_page, ptb_folder, ptb_report):
    evaluation = read_study(ptb_folder).runs[0].evaluation
    assert sorted(ptb_report) == sorted(ptb_report[0].parent.iterdir())
    assert f"advantage, seed 0: validation perplexity {evaluation.measures[0].value:.2f}" in ptb_page
    assert "gdas, seed 1 (unfinished)" in ptb_page
    assert '<td class="word">process best</td>' in ptb_page
    assert '<span class="theirs" title="paper">94.90 ± 0.18</span>' in ptb_page
    assert "parameters cannot be compared" in ptb_page
    assert "ccuracy" not in ptb_page
    assert len(Elements(ptb_page)["svg"]) == 4 + 3
    assert len(Elements(ptb_page)["img"]) == 8


def test_the_retrained_cell_is_drawn(ptb_page, ptb_folder):
    run = read_study(ptb_folder).of("gdas")[0]
    edges = ", ".join(f"{edge} {operation}" for edge, operation in run.evaluation.architecture.items())
    (picture,) = (found for found in Elements(ptb_page)["img"] if "Cell found by gdas, seed 0" in found["alt"])
    assert picture["alt"].endswith(edges)


def test_a_page_on_cells_of_a_table_does_not_speak_of_perplexity(page):
    assert "perplexity" not in page


def test_a_study_that_retrains_leaves_the_table_alone(write_study, tmp_path):
    folder = write_study(tmp_path, seeds=1, records=2, experiment="ptb")
    first = {path: path.read_bytes() for path in write_report(folder, None)}
    asked_for_anything_it_raises = object()
    assert {path: path.read_bytes() for path in write_report(folder, asked_for_anything_it_raises)} == first


def test_what_comes_from_retraining_is_escaped(write_study, tmp_path):
    strategy = NASTY.replace("/", "")
    folder = write_study(tmp_path, (strategy,), seeds=1, records=2, experiment="ptb")
    path = folder / f"runs/{strategy}-0/result.json"
    result = json.loads(path.read_text())
    result["evaluation"]["architecture"] = {"0->1": "<script>"}
    path.write_text(json.dumps(result))
    text = write_report(folder, None)[0].read_text()
    assert "<script" not in text
    assert "0-&gt;1 &lt;script&gt;" in text


def test_the_summary_of_perplexities_prefers_the_lower(write_study, tmp_path):
    study = read_study(write_study(tmp_path, records=4, experiment="ptb"))
    text = " ".join(summary(study, None))
    means = {
        name: sum(run.evaluation.measures[0].value for run in study.of(name)) / 2
        for name in ("advantage", "random")
    }
    assert means["advantage"] < means["random"]
    assert re.fullmatch(
        r"advantage has the best mean validation perplexity \(lower is better\): "
        rf"{means['advantage']:.2f} ± \d\.\d\d over 2 seeds\. "
        r"Whether it is ahead of \w+ is open: that takes 6 seeds\. "
        r"advantage has the best mean test perplexity \(lower is better\): .* over 2 seeds\. "
        r"Whether it is ahead of \w+ is open: that takes 6 seeds\.",
        text,
    )


def test_the_page_says_who_does_not_beat_random_by_perplexity(write_study, tmp_path):
    folder = write_study(tmp_path, ("proxyless", "random"), seeds=1, records=2, experiment="ptb")
    path = folder / "runs/proxyless-0/result.json"
    result = json.loads(path.read_text())
    result["evaluation"]["valid_perplexity"] = 999.0
    path.write_text(json.dumps(result))
    assert sentences(folder, None).startswith("random has the best mean")
    text = write_report(folder, None)[0].read_text()
    assert "Too few seeds to tell whether proxyless beats random by validation perplexity: 999.00 against" in text
    assert "over 1 seed. Run at least 6" in text


def test_results_that_were_not_retrained_are_reported_without_perplexities(write_study, tmp_path):
    folder = write_study(tmp_path, seeds=1, records=2, experiment="ptb")
    for path in folder.glob("runs/*/result.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"evaluation": {}}))
    text = write_report(folder, None)[0].read_text()
    assert "No answer was judged yet" in text
    assert "search time" in text
    assert "test perplexity" not in text
    assert not (folder / "report/retrained.svg").exists()


def test_a_study_that_retrains_without_a_finished_run_is_reported(write_study, tmp_path):
    folder = write_study(tmp_path, ("gdas",), seeds=1, unfinished=("gdas-0",), experiment="ptb")
    text = write_report(folder, None)[0].read_text()
    assert "No run is finished yet" in text
    assert "gdas, seed 0 (unfinished)" in text


def test_measured_swaps_have_a_table_of_their_own(write_study, tmp_path):
    folder = write_study(tmp_path, ("advantage", "contrast", "random"), seeds=1, experiment="ptb")
    assert "<h2>Credit</h2>" not in write_report(folder, None)[0].read_text()
    for name, believed in (("advantage", -1.0), ("contrast", 1.0)):
        path = folder / f"runs/{name}-0/result.json"
        swaps = (Swap("0->1", "relu", "tanh", 1.0, believed),) * 8
        credit = CreditCheck(name, name == "contrast", swaps).to_json()
        path.write_text(json.dumps(json.loads(path.read_text()) | {"credit": credit}))
    page = write_report(folder, None)[0].read_text()
    section = page[page.index("<h2>Credit</h2>") : page.index("<h2>Figures</h2>")]
    rows = re.findall(r"<tr>\s*<th scope=\"row\">(\w+)</th>(.*?)</tr>", section, re.DOTALL)
    cells = {name: re.findall(r"<td>(.*?)</td>", row) for name, row in rows}
    assert cells == {
        "contrast": ["1", "8", "1.00", "0 of 1", "agree"],
        "advantage": ["1", "8", "-1.00", "1 of 1", "contradict"],
    }


def page_of_one_search(folder):
    network = torch.nn.Sequential(Choice({"a": torch.nn.Linear(2, 2), "b": torch.nn.Identity()}, name="layer"))
    batches = [torch.ones(4, 2)] * 3
    task = Task(batches, batches, lambda model, x: model(x).square().mean())
    answer = Search(network).run(task, epochs=3, folder=folder, progress=False)
    return answer, write_report(folder, None)[0].read_text()


def test_the_page_of_one_search_begins_with_its_answer_and_how_to_use_it(tmp_path):
    answer, text = page_of_one_search(tmp_path)
    assert text.index("<h2>The answer</h2>") < text.index("<h2>Verdict</h2>")
    assert f"<dt>layer</dt> <dd>{answer['layer']}</dd>" in text
    assert f"advnas export {tmp_path} --entry MODULE:FUNCTION" in text
    assert "Adam(lr=30 / steps of theta" in text


def test_the_commands_can_be_pasted_whatever_the_folder_is_called(tmp_path):
    folder = tmp_path / "my runs"
    text = html.unescape(page_of_one_search(folder)[1])
    for command in ("export", "retrain"):
        assert f"advnas {command} '{folder}' --entry MODULE:FUNCTION" in text
    assert "MODULE:FUNCTION --epochs N" in text


def test_a_study_of_strategies_has_no_single_answer(page):
    assert "<h2>The answer</h2>" not in page
