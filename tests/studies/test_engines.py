"""The engines of a study. What Ray is asked to do here takes a real cluster of two workers."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from pathlib import Path

import pytest

from advnas.paper.cifar10 import PRESETS, Cifar10
from advnas.studies import execute as module
from advnas.studies.engines import Processes, Ray, _pass_on
from advnas.studies.execute import RunsFailed, execute, plan

PROGRAM = Path(__file__).with_name("study_to_kill.py")
EXPERIMENT = Cifar10(PRESETS["quick"], Path("nowhere"))


class Lost:
    """An engine that does the work where nobody sees it."""

    def __init__(self, room):
        self.room, self.stopped = room, False

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def submit(self, work, *arguments):
        future = Future()
        future.set_result(None)
        return future

    def stop(self):
        self.stopped = True


def test_a_run_that_the_driver_cannot_see_is_not_taken_for_done(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_APPEARANCE", 0.0)
    jobs = plan(EXPERIMENT, ["darts"], [0])
    with pytest.raises(RunsFailed, match="Give a --folder on storage that all machines see"):
        execute(EXPERIMENT, jobs, tmp_path, engine=Lost(room=None))


def test_processes_stop_their_own_and_no_other_child():
    other = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    other.start()
    try:
        with Processes(1) as engine:
            future = engine.submit(time.sleep, 60)
            while not future.running():
                time.sleep(0.01)
            engine.stop()
        assert future.exception() is not None
        assert other.is_alive()
    finally:
        other.kill()
        other.join()


class Interrupted(Lost):
    def submit(self, work, *arguments):
        future = Future()
        future.set_exception(KeyboardInterrupt())
        return future


def test_an_interrupted_run_stops_the_study(tmp_path):
    engine = Interrupted(room=1)
    with pytest.raises(KeyboardInterrupt, match="stopped and saved"):
        execute(EXPERIMENT, plan(EXPERIMENT, ["darts"], [0]), tmp_path, engine=engine)
    assert engine.stopped


class AroundIt(Exception):
    def __init__(self, cause):
        super().__init__("something with the colours of a terminal")
        self.cause = cause


@pytest.mark.parametrize("wrapped", [True, False])
def test_errors_come_without_what_the_cluster_puts_around_them(wrapped):
    own, over, future = ValueError("an unlucky seed"), Future(), Future()
    over.set_exception(AroundIt(own) if wrapped else own)
    _pass_on(future, over)
    assert future.exception() is own


def test_without_ray_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"Write pip install 'advnas\[ray\]'"), Ray():
        pass


def test_a_cluster_that_is_not_there_is_told_at_once():
    pytest.importorskip("ray")
    with (
        pytest.raises(ValueError, match=r"There is no Ray cluster at '127\.0\.0\.1:1'\. Start one"),
        Ray("127.0.0.1:1"),
    ):
        pass


def start(folder, *arguments):
    quiet = {"NOTES": str(folder / "notes"), "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, str(PROGRAM), str(folder), *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, env=os.environ | quiet, **pipes)


def notes(folder):
    lines = (folder / "notes").read_text().splitlines()
    return [(int(process), what) for process, what in map(str.split, lines)]


def records(folder):
    return {path.parent.name: path.read_bytes() for path in sorted(folder.glob("runs/*/records.jsonl"))}


def wait_for(pattern, folder, program):
    while not list(folder.glob(pattern)):
        assert program.poll() is None, program.communicate()[0]
        time.sleep(0.01)


@pytest.mark.slow
def test_a_killed_worker_of_a_cluster_is_replaced_and_the_results_are_those_of_processes(tmp_path):
    pytest.importorskip("ray")
    here, there = tmp_path / "processes", tmp_path / "ray"
    for folder in (here, there):
        folder.mkdir()
    local = start(here, str(os.cpu_count()))  # one thread each, as on the cluster
    output = local.communicate(timeout=280)[0]
    assert local.returncode == 0, output
    cluster = start(there, "ray")
    wait_for("runs/darts-3/checkpoint-*.json", there, cluster)
    victim = next(process for process, what in notes(there) if what == "darts")
    os.kill(victim, signal.SIGKILL)
    output = cluster.communicate(timeout=280)[0]
    assert cluster.returncode == 0, output
    second = [process for process, what in notes(there) if what == "darts" and process != victim]
    assert second, "nobody took over"
    lines = notes(there)
    begun = lines.index((second[0], "darts"))
    first_step = next(int(what) for process, what in lines[begun + 1 :] if process == second[0])
    assert first_step > 0, "the run did not go on from its checkpoint"
    assert records(there) == records(here)
    assert len(records(there)) == 3


@pytest.mark.slow
def test_a_signal_lets_the_runs_on_a_cluster_save(tmp_path):
    pytest.importorskip("ray")
    program = start(tmp_path, "ray")
    wait_for("runs/darts-3/checkpoint-*.json", tmp_path, program)
    program.send_signal(signal.SIGTERM)
    output = program.communicate(timeout=120)[0]
    assert "SearchStopped: The runs under way were stopped and saved." in output
    begun = [journal.parent for journal in tmp_path.glob("runs/*/metrics.jsonl") if journal.stat().st_size]
    stopped = [run for run in begun if not (run / "result.json").exists()]  # one may have ended meanwhile
    assert stopped
    assert all(list(run.glob("checkpoint-*.json")) for run in stopped)
