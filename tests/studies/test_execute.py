from pathlib import Path

import pytest

from advnas.paper.cifar10 import PRESETS, Cifar10
from advnas.studies import execute as module
from advnas.studies.execute import Job, RunsFailed, execute, plan
from advnas.studies.run import run_folder, warmup_file

EXPERIMENT = Cifar10(PRESETS["quick"], Path("nowhere"))


def note_done(job, study):
    path = warmup_file(study, job.seed) if job.strategy is None else run_folder(study, job.strategy, job.seed)
    path = path if job.strategy is None else path / "result.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def test_warm_ups_come_first_and_then_seed_by_seed():
    jobs = plan(EXPERIMENT, ["advantage", "darts"], [0, 1])
    assert [(job.strategy, job.seed) for job in jobs] == [
        (None, 0),
        (None, 1),
        ("advantage", 0),
        ("darts", 0),
        ("advantage", 1),
        ("darts", 1),
    ]


def test_dense_strategies_alone_need_no_shared_warm_up():
    assert [job.strategy for job in plan(EXPERIMENT, ["darts", "snas"], [0])] == ["darts", "snas"]


@pytest.fixture
def ran(monkeypatch, request):
    """Jobs that are carried out, without the work."""
    names, error = [], getattr(request, "param", ValueError)

    def run(job, experiment, study):
        if job.seed == 13:
            raise error("an unlucky seed")
        names.append(job.name)
        note_done(job, study)

    monkeypatch.setattr(module.Job, "run", run)
    return names


def test_finished_jobs_are_skipped_when_a_study_is_started_again(tmp_path, ran):
    jobs = plan(EXPERIMENT, ["random", "advantage"], [0])
    note_done(jobs[1], tmp_path)
    done = []
    execute(EXPERIMENT, jobs, tmp_path, on_done=done.append)
    assert ran == ["warm-up, seed 0", "advantage, seed 0"]
    assert done == [jobs[0], jobs[2]]
    execute(EXPERIMENT, jobs, tmp_path)
    assert len(ran) == 2


@pytest.mark.parametrize("ran", [ValueError, TypeError, OSError], indirect=True)
def test_a_failing_run_does_not_stop_the_others_and_is_told_at_the_end(tmp_path, ran):
    jobs = plan(EXPERIMENT, ["random", "darts"], [13, 14])
    reason = r"warm-up, seed 13 and darts, seed 13: (\w+: )?an unlucky"
    with pytest.raises(RunsFailed, match=rf"2 of 6 runs failed.* {reason}"):
        execute(EXPERIMENT, jobs, tmp_path)
    assert "Traceback" in (tmp_path / "failures.txt").read_text()
    assert ran == ["warm-up, seed 14", "random, seed 14", "darts, seed 14"]


def test_a_search_waits_for_its_warm_up():
    warmup, search, dense = Job(None, 0), Job("advantage", 0), Job("darts", 0)
    assert module._startable([warmup, search, dense], {}) == [warmup, dense]
    assert module._startable([search, dense], {object(): warmup}) == [dense]
    assert module._startable([search, Job("advantage", 1)], {object(): Job(None, 1)}) == [search]


def test_the_status_of_a_run_goes_by_its_files(tmp_path):
    job, length = Job("advantage", 0), EXPERIMENT.length
    assert job.status(EXPERIMENT, tmp_path).phase == "waiting"
    folder = run_folder(tmp_path, "advantage", 0)
    folder.mkdir(parents=True)
    assert job.status(EXPERIMENT, tmp_path).phase == "search"
    halfway = (length.warmup_turns + length.turns) // 2
    (folder / "records.jsonl").write_text('{"step":0}\n' + f'{{"step":{halfway}}}\n')
    status = job.status(EXPERIMENT, tmp_path)
    assert (status.phase, status.part, status.record) == ("search", 0.5, {"step": halfway})
    with (folder / "records.jsonl").open("a") as records:
        records.write('{"step":')  # by a process that was killed
    assert job.status(EXPERIMENT, tmp_path).record == {"step": halfway}
    (folder / "evaluation").mkdir()
    (folder / "evaluation/checkpoint-000000007.pt").touch()
    status = job.status(EXPERIMENT, tmp_path)
    assert (status.phase, status.part) == ("retraining", 7)
    note_done(job, tmp_path)
    assert job.status(EXPERIMENT, tmp_path).share == 1


def test_the_status_of_a_warmup_goes_by_its_checkpoints(tmp_path):
    job = Job(None, 0)
    assert job.status(EXPERIMENT, tmp_path).share == 0
    (tmp_path / "warmup/0").mkdir(parents=True)
    (tmp_path / f"warmup/0/checkpoint-{EXPERIMENT.length.warmup_turns // 2:09d}.pt").touch()
    status = job.status(EXPERIMENT, tmp_path)
    assert (status.phase, status.share) == ("warm-up", 0.5)
    (tmp_path / "warmup/0.pt").touch()
    assert job.status(EXPERIMENT, tmp_path).phase == "done"
