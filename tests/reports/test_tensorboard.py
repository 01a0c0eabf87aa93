import json
import sys

import pytest

from advnas.reports.tensorboard import write_events


def test_every_run_has_its_curves(write_study, tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder = write_study(tmp_path, ("advantage",), seeds=1, experiment="search")
    line = {"phase": "architecture", "number": 4, "loss": 0.5, "entropy": 1.0, "advantages": {"0->1": 0.25}}
    (folder / "runs/advantage-0/metrics.jsonl").write_text(json.dumps(line) + "\n")
    events = accumulator.EventAccumulator(str(write_events(folder) / "advantage-0"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("advantage/0->1")] == [(4, 0.25)]
    assert any(name.startswith("probability 0->1/") for name in events.Tags()["scalars"])


def test_a_missing_package_is_told(write_study, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ValueError, match=r"pip install 'advnas\[tensorboard\]'"):
        write_events(write_study(tmp_path, ("advantage",), seeds=1))
