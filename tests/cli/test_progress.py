"""Lines of progress where there is no terminal."""

from types import SimpleNamespace

import pytest

from advnas.cli import progress


@pytest.mark.parametrize(("passed", "told"), [(3.0, "about 6 s left"), (600.0, "about 20 min left")])
def test_the_time_left_is_told_in_seconds_while_they_are_few(passed, told, tmp_path, monkeypatch, capsys):
    clock = iter([0.0, passed])
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    jobs = [SimpleNamespace(name=f"contrast, seed {seed}", is_done=lambda folder: False) for seed in range(3)]
    with progress.study_progress(None, jobs, tmp_path) as announce:
        announce(jobs[0])
    assert f"contrast, seed 0: done; 1 of 3, {told}" in capsys.readouterr().err
