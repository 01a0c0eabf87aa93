import json

import pytest

from advnas.reports.budget import draw_budget
from advnas.reports.study import read_study

pytest.importorskip("matplotlib")


def test_the_expected_cost_is_drawn_over_the_steps_of_theta(write_study, tmp_path):
    folder = write_study(tmp_path, ("advantage",), seeds=1, experiment="ptb")
    run = folder / "runs/advantage-0"
    result = json.loads((run / "result.json").read_text())
    result["evaluation"]["spent"] = [{"name": "parameters", "unit": "", "limit": 100.0, "amount": 90.0}]
    (run / "result.json").write_text(json.dumps(result))
    amounts = [("weights", 500), ("architecture", 200), ("weights", 500), ("architecture", 50)]
    lines = [
        {"phase": phase, "limits": {"parameters": {"expected": expected, "limit": 100.0, "multiplier": 0.5}}}
        for phase, expected in amounts
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    drawings = {drawing.name: drawing for drawing in draw_budget(read_study(folder))}
    cost, multiplier = drawings["budget-parameters"].figure.axes
    assert cost.lines[0].get_xydata().tolist() == [[1, 2.0], [2, 0.5]]
    assert multiplier.lines[0].get_ydata().tolist() == [0.5, 0.5]
