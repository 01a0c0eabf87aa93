import csv
import io
import json
import math
from functools import partial

import pytest
import torch

from advnas import Choice, Search, Task
from advnas.costs import Cost
from advnas.reports.directions import all_directions, direction_tables, directions, directions_csv
from advnas.reports.study import read_study
from advnas.reports.verdict import conduct


@pytest.fixture
def folder(write_study, tmp_path):
    return write_study(tmp_path, ("contrast",), seeds=1, experiment="search")


def journal(folder, lines, run="contrast-0"):
    """Let the run have these steps of theta, and prefer a to b at its first decision; return it as it is read."""
    path = folder / "runs" / run
    records = [json.loads(line) for line in (path / "records.jsonl").read_text().splitlines()]
    records[-1]["probabilities"] = {"0->1": {"a": 0.6, "b": 0.3, "c": 0.1}}
    (path / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in records))
    result = json.loads((path / "result.json").read_text())
    (path / "result.json").write_text(json.dumps(result | {"argmax": {"0->1": "a"}}))
    steps = [{"phase": "weights", "loss": 9.0, "architecture": {"0->1": "c"}}]
    steps += [{"phase": "architecture", "loss": 1.0} | line for line in lines]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in steps))
    return read_study(folder).runs[0]


def contrasted(drawn, rival, gains):
    return [{"architecture": {"0->1": drawn}, "contrasts": {"0->1": {rival: gain}}} for gain in gains]


def shared(operation, values):
    return [{"architecture": {"0->1": operation}, "advantages": {"0->1": value}} for value in values]


def lead(run, rival):
    (found,) = (one for one in directions(run).found[0].leads if one.rival == rival)
    return found


def test_contrasts_of_both_roles_count_alike(folder):
    lines = contrasted("a", "b", [-1.0, -3.0] * 20) + contrasted("b", "a", [5.0, 7.0] * 2)
    found = lead(journal(folder, lines), "b")
    assert found.mean == (2 + 6) / 2
    many, few = (2.0 / 39 * 20) / 40, (4 / 3) / 4  # variances of the two means
    assert found.error == pytest.approx(math.sqrt(many + few) / 2)
    assert (found.comparisons, found.known) == (44, True)


def test_a_role_that_was_seen_seldom_scatters_like_the_other_rivals(folder):
    lines = contrasted("a", "b", [-1.0, -3.0] * 4) + contrasted("b", "a", [6.0])
    alone = lead(journal(folder, lines), "b")
    assert not alone.compared  # one value does not tell how far it scatters
    found = lead(journal(folder, lines + contrasted("c", "a", [8.0, 10.0] * 2)), "b")
    assert (found.mean, found.comparisons) == ((2 + 6) / 2, 9)
    assert found.error == pytest.approx(math.sqrt((8 / 7) / 8 + (4 / 3) / 1) / 2)


def test_a_role_that_never_came_does_not_count(folder):
    found = lead(journal(folder, contrasted("a", "b", [-1.0, -3.0] * 4)), "b")
    assert (found.mean, found.comparisons) == (2.0, 8)


def test_a_decided_edge_is_known_though_its_signal_scatters_around_zero(folder):
    """Contrasts of both signs, whose mean over all steps is 0: the pooled ratio of mean and scatter is infinite."""
    lines = contrasted("a", "b", [-0.9, -1.1] * 10) + contrasted("b", "a", [0.9, 1.1] * 10)
    lines += contrasted("a", "c", [-0.9, -1.1] * 10) + contrasted("c", "a", [0.9, 1.1] * 10)
    (direction,) = directions(journal(folder, lines)).found
    assert direction.known
    assert all(one.mean == pytest.approx(1) for one in direction.leads)


def test_the_rival_with_which_a_decision_is_open_is_named(folder):
    lines = contrasted("a", "b", [-3.0, 2.0] * 8) + contrasted("a", "c", [-0.9, -1.1] * 8)
    run = journal(folder, lines)
    (direction,) = directions(run).found
    assert not direction.known
    assert direction.closest.rival == "b"
    text = next(remark.text for remark in remarks(folder) if "direction" in remark.text)
    assert "known at 0 of 1 decisions" in text
    assert "Open: 0->1 of seed 0, a against b (+0.5 ± 0.6 over 16)." in text


def test_a_rival_that_is_ahead_is_told(folder):
    lines = contrasted("a", "b", [0.9, 1.1] * 8) + contrasted("a", "c", [-0.9, -1.1] * 8)
    run = journal(folder, lines)
    assert lead(run, "b").against
    assert any("so the rival is ahead" in remark.text for remark in remarks(folder))


@pytest.mark.parametrize(("most", "outside"), [(10, True), (20, False)])
def test_a_rival_that_is_ahead_but_over_the_limit_is_told_so(most, outside, folder):
    place = frozenset([("0->1", "b")])
    costs = [Cost("parameters", "", 0.0, {place: 20.0}).to_json()]
    (folder / "costs.json").write_text(json.dumps({"costs": costs}))
    path = folder / "runs/contrast-0/result.json"
    result = json.loads(path.read_text())
    evaluation = {"by": "argmax", "architecture": {"0->1": "a"}, "validation_score": 1.0, "parameters": 1}
    evaluation |= {"best_epoch": 1, "measures": [{"name": "test loss", "value": 1.0, "more_is_better": False}]}
    evaluation |= {"spent": [{"name": "parameters", "unit": "", "limit": most, "amount": 0, "front": []}]}
    path.write_text(json.dumps(result | {"evaluation": evaluation}))
    found = lead(journal(folder, contrasted("a", "b", [1.0, 2.0] * 9)), "b")
    assert (found.against, found.outside) == (True, outside)
    told = [remark.text for remark in remarks(folder) if "so the rival is ahead" in remark.text]
    assert ["but not within the limit" in text for text in told] == [outside]
    (table,) = direction_tables(read_study(folder), all_directions(read_study(folder)))
    assert table.rows[0][0][-1] == ("rival ahead, over the limit" if outside else "rival ahead")


def test_too_few_comparisons_tell_nothing(folder):
    lines = contrasted("a", "b", [-0.9, -1.1] * 8) + contrasted("a", "c", [-1.0] * 3)
    run = journal(folder, lines)
    (direction,) = directions(run).found
    assert not direction.known
    assert direction.closest.rival == "c"
    assert str(direction.closest) == "too seldom compared: 3 times"


def test_a_known_direction_is_a_good_sign(folder):
    run = journal(folder, contrasted("a", "b", [-0.9, -1.1] * 8) + contrasted("a", "c", [-0.9, -1.1] * 8))
    assert directions(run).found[0].known
    assert [remark.good for remark in remarks(folder) if "direction" in remark.text] == [True]


def test_shares_are_compared_within_periods(folder):
    """All shares grow by 1 at every period, and b is drawn late: without periods, b would seem to be ahead."""
    lines = []
    for period in range(10):
        early = period < 5
        lines += shared("a", [period + 1.4, period + 1.6] * (4 if early else 1))
        lines += shared("b", [period + 0.9, period + 1.1] * (1 if early else 4))
    found = lead(journal(folder, lines), "b")
    assert found.mean == pytest.approx(0.5)
    assert found.error == pytest.approx(math.sqrt(0.01 * 100 / (100 - 20) / (10 * 8 * 2 / 10)))
    assert (found.comparisons, found.known) == (100, True)


def test_zero_operations_have_no_share_to_compare(folder):
    lines = [line for value in (0.9, 1.1) * 20 for line in (*shared("a", [value]), *shared("b", [-value]))]
    lines += shared("c", [0.0, -0.0] * 5)
    (direction,) = directions(journal(folder, lines)).found
    assert [one.rival for one in direction.leads] == ["b"]
    assert direction.known


def test_strategies_without_slopes_are_judged_by_their_losses(write_study, tmp_path):
    folder = write_study(tmp_path, ("reinforce",), seeds=1, experiment="search")
    lines = [
        {"architecture": {"0->1": name}, "loss": loss + noise}
        for noise in (0.0, 0.1) * 50
        for name, loss in (("a", 1.0), ("b", 2.0), ("c", 3.0))
    ]
    known = directions(journal(folder, lines, "reinforce-0"))
    assert known.source == "losses of whole architectures"
    assert [(one.rival, pytest.approx(one.mean), one.known) for one in known.found[0].leads] == [
        ("b", 1.0, True),
        ("c", 2.0, True),
    ]


@pytest.mark.parametrize(
    ("strategy", "line", "words"),
    [
        ("darts", {"architecture": None, "advantages": {"0->1": 1.0}}, "mix operations"),
        ("exact_contrast", {"architecture": {"0->1": "a"}}, "further passes"),
        ("exact_advantage", {"architecture": {"0->1": "a"}}, "further passes"),
        ("parsec", {"architecture": {"0->1": "a"}}, "further passes"),
        ("advantage", None, "were not kept"),
    ],
)
def test_what_cannot_be_told_is_not_invented(strategy, line, words, write_study, tmp_path):
    folder = write_study(tmp_path, (strategy,), seeds=1, experiment="search")
    known = directions(journal(folder, [line] * 20 if line else [], f"{strategy}-0"))
    assert words in known.source
    assert known.found == ()
    (text,) = (remark.text for remark in remarks(folder) if "directions" in remark.text)
    assert text == f"Whether {strategy}'s directions are known cannot be told: {known.source}."


def remarks(folder):
    study = read_study(folder)
    return conduct(study, all_directions(study))


def test_every_pair_is_in_the_spreadsheet(folder):
    run = journal(folder, contrasted("a", "b", [-0.9, -1.1] * 8) + contrasted("a", "c", [-1.0] * 3))
    study = read_study(folder)
    rows = list(csv.DictReader(io.StringIO(directions_csv(study, {run.name: directions(run)}))))
    assert [(row["decision"], row["operation"], row["rival"], row["known"]) for row in rows] == [
        ("0->1", "a", "b", "1"),
        ("0->1", "a", "c", "0"),
    ]
    assert float(rows[0]["lead"]) == pytest.approx(1)
    assert (rows[1]["lead"], rows[1]["standard_error"], rows[1]["comparisons"]) == ("", "", "3")


def test_a_page_has_a_table_per_strategy_that_learns(folder):
    journal(folder, contrasted("a", "b", [-0.9, -1.1] * 8) + contrasted("a", "c", [-1.9, -2.1] * 8))
    study = read_study(folder)
    (table,) = direction_tables(study, all_directions(study))
    assert table.title == "contrast, seed 0: 1 of 1 directions known"
    assert table.rows == (
        (
            ("0->1", "a", "b", "+1 ± 0.03", "16", "known"),
            "against b: +1 ± 0.03 over 16\nagainst c: +2 ± 0.03 over 16",
        ),
    )


class Shifted(torch.nn.Module):
    def __init__(self, by):
        super().__init__()
        self.by = by

    def forward(self, x):
        return x + self.by


def searched(strategy, folder):
    """Search among shifts, of which "near" is best, with weights that stand still."""
    choice = Choice(
        {name: Shifted(by) for name, by in {"near": 0.0, "far": 3.0, "farther": 6.0}.items()}, name="shift"
    )
    network = torch.nn.Sequential(choice, torch.nn.Linear(2, 2, bias=False))
    torch.nn.init.eye_(network[1].weight)
    batches = list(torch.randn(60, 8, 4, generator=torch.Generator().manual_seed(0)).unbind())
    task = Task(batches, batches, lambda model, x: (model(x[:, :2]) - x[:, 2:]).square().mean())
    search = Search(network, strategy, seed=0, weight_optimizer=partial(torch.optim.SGD, lr=0.0))
    search.run(task, epochs=3, folder=folder, progress=False)
    (run,) = read_study(folder).runs
    (direction,) = directions(run).found
    return direction


@pytest.mark.parametrize("strategy", ["contrast", "reinforce", "proxyless", "gdas"])
def test_a_real_search_of_every_kind_of_signal_knows_a_clear_winner(strategy, tmp_path):
    direction = searched(strategy, tmp_path)
    assert direction.operation == "near"
    assert direction.known


def test_the_shares_of_a_real_search_show_where_theta_went_wrong(tmp_path):
    """All shares are negative here, so every draw is discouraged, and what was drawn least wins."""
    direction = searched("advantage", tmp_path)
    assert direction.operation == "farther"
    assert direction.closest.rival == "near"
    assert direction.closest.against
