import json

import pytest
import torch
from torch import nn

from advnas import Choice, SearchSpace, costs
from networks import apart, nested

ROWS = {"edge": {"conv": 1.5, "skip": 0}, "head": {"wide": 4, "narrow": 1}}


@pytest.fixture
def space():
    edge = Choice({"conv": nn.Linear(2, 2), "skip": nn.Identity()}, name="edge")
    head = Choice({"wide": nn.Linear(2, 2), "narrow": nn.Identity()}, name="head")
    return SearchSpace(nn.Sequential(edge, head))


def test_a_dict_a_json_file_and_a_csv_file_give_the_same(space, tmp_path):
    (tmp_path / "t.json").write_text(json.dumps(ROWS))
    lines = [f"{d},{o},{cost}" for d, row in ROWS.items() for o, cost in row.items()]
    (tmp_path / "t.csv").write_text("\n".join(["decision,operation,cost", *lines]))
    for source in (ROWS, tmp_path / "t.json", str(tmp_path / "t.csv")):
        cost = costs.table(space, source, name="energy", unit="mJ", constant=10)
        assert cost.of({"edge": "conv", "head": "narrow"}) == 12.5
        assert cost.told(12.5) == "12.5 mJ"


def test_a_nested_operation_costs_nothing_where_it_is_not_reached():
    space = SearchSpace(nested())
    rows = {d.name: dict.fromkeys(d.operations, 1) for d in space.decisions}
    cost = costs.table(space, rows, name="count")
    one = {"inner": "wide", "norm": "none", "deepest": "thin"}
    assert cost.of({**one, "outer": "skip"}) == 1
    assert cost.of({**one, "outer": "block"}) == 4


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ({"edge": ROWS["edge"]}, "the table of energy has no decision 'head'"),
        ({**ROWS, "haed": {}}, r"unknown decision 'haed' \(did you mean 'head'\?\)"),
        ({**ROWS, "edge": {"conv": 1}}, "decision 'edge' in the table of energy has no operation 'skip'"),
        ({**ROWS, "edge": {"conv": 1, "skip": 1, "x": 1}}, "unknown operation 'x'"),
        ({**ROWS, "edge": 3}, "must map every operation to numbers"),
        ({**ROWS, "edge": {"conv": "much", "skip": 0}}, "must be a number, got 'much'"),
        ({**ROWS, "edge": {"conv": -1, "skip": 0}}, "finite number of at least 0, got -1"),
        ({**ROWS, "edge": {"conv": float("nan"), "skip": 0}}, "finite number of at least 0, got nan"),
    ],
)
def test_what_is_wrong_with_a_table_is_named(space, rows, problem):
    with pytest.raises(ValueError, match=problem):
        costs.table(space, rows, name="energy")


@pytest.mark.parametrize(("name", "text"), [("t.csv", "a,b\n1,2\n"), ("t.json", "[1]"), ("t.json", "{")])
def test_files_of_another_form_are_refused(space, tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=name):
        costs.table(space, tmp_path / name, name="energy")


def test_one_number_cannot_stand_for_a_decision_that_is_reached_in_two_ways():
    space = SearchSpace(apart())
    rows = {d.name: dict.fromkeys(d.operations, 1) for d in space.decisions}
    with pytest.raises(ValueError, match="'tied' lie in candidates of different decisions"):
        costs.table(space, rows, name="count")


def test_weights_that_different_decisions_share_are_no_sum():
    shared = nn.Linear(2, 2)
    one = Choice({"a": shared, "b": nn.Identity()}, name="one")
    other = Choice({"a": shared, "b": nn.Identity()}, name="other")
    with pytest.raises(ValueError, match="no sum over its operations"):
        costs.parameters(SearchSpace(nn.Sequential(one, other)))


def test_weights_that_operations_of_one_decision_share_count_once():
    shared = nn.Linear(2, 2)
    choice = Choice({"plain": shared, "twice": nn.Sequential(shared, nn.Linear(2, 2, bias=False))}, name="one")
    cost = costs.parameters(SearchSpace(nn.Sequential(choice)))
    assert [cost.of({"one": operation}) for operation in ("plain", "twice")] == [6, 10]


def test_a_cost_survives_json_and_knows_its_own_space(space):
    cost = costs.parameters(space)
    again = costs.Cost.from_json(json.loads(json.dumps(cost.to_json())))
    assert again == cost
    again.check_fits(costs.operations_of(space))
    with pytest.raises(ValueError, match="of another space: it knows operation 'conv' of decision 'edge'"):
        cost.check_fits({"head": ("wide", "narrow")})
    with pytest.raises(ValueError, match="no cost"):
        costs.Cost.from_json({"name": "x"})
    assert torch.is_grad_enabled()
