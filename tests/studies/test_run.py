import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from advnas.studies.run import read_results

PROGRAM = Path(__file__).with_name("study_to_kill.py")


@pytest.fixture(scope="module")
def program():
    spec = importlib.util.spec_from_file_location("study_to_kill", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def uninterrupted(program, tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    program.run(folder)
    return folder


def start_and_kill_when(condition, folder, *arguments):
    command, marked = [sys.executable, str(PROGRAM), str(folder), *arguments], os.environ | {"STUDY": str(folder)}
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=marked)
    while process.poll() is None and not condition():
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it was over before it could be killed"


def records(folder):
    return {path.parent.name: path.read_bytes() for path in sorted(folder.glob("runs/*/records.jsonl"))}


def outcomes(folder):
    timeless = ("strategy", "seed", "argmax", "process_best", "saved_bytes")
    return [{key: result[key] for key in timeless} for result in read_results(folder)]


def test_a_killed_study_goes_on_and_ends_with_the_same_records(program, uninterrupted, tmp_path):
    for place in ("warmup/3", "runs/advantage-3", "runs/darts-3"):
        seen = len(list(tmp_path.glob(f"{place}/checkpoint-*.json")))
        start_and_kill_when(lambda: len(list(tmp_path.glob(f"{place}/checkpoint-*.json"))) > seen, tmp_path)  # noqa: B023
    program.run(tmp_path)
    assert records(tmp_path) == records(uninterrupted)
    assert outcomes(tmp_path) == outcomes(uninterrupted)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_the_processes_of_a_killed_study_end_with_it(tmp_path):
    start_and_kill_when(lambda: list(tmp_path.glob("warmup/3/checkpoint-*.json")), tmp_path, "2")
    deadline = time.monotonic() + 30
    while processes_of(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not processes_of(tmp_path)


def processes_of(folder):
    """All that inherited the mark which `start_and_kill_when` sets."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"STUDY={folder}".encode() in (process / "environ").read_bytes():
                found.append(process.name)
    return found


def test_records_start_where_theta_does_and_end_with_the_search(uninterrupted):
    for name, text in records(uninterrupted).items():
        lines = [json.loads(line) for line in text.splitlines()]
        assert [line["epoch"] for line in lines] == [2, 2.5, 3, 3.5, 4], name
        assert lines[0]["loss"] is None
        losses = [line["loss"] for line in lines[1:]]
        assert any(losses)
        assert all(loss is None or loss > 0 for loss in losses)  # parsec: not in every half epoch
        timing = (uninterrupted / "runs" / name / "timing.jsonl").read_text().splitlines()
        assert [json.loads(line)["epoch"] for line in timing] == [line["epoch"] for line in lines]


def test_results_say_what_was_found_and_how_it_was_made(uninterrupted):
    results = read_results(uninterrupted)
    assert [result["strategy"] for result in results] == ["advantage", "darts", "parsec"]
    for result in results:
        assert len(result["argmax"]) == 6
        assert result["warmup_seconds"] > 0
        assert result["provenance"]["commit"]
    kept = {result["strategy"]: result["saved_bytes"] for result in results}
    assert kept["darts"] > 2 * kept["advantage"]


def test_a_finished_run_is_not_run_again(program, uninterrupted):
    before = {path: path.stat().st_mtime_ns for path in uninterrupted.rglob("*") if path.is_file()}
    program.run(uninterrupted)
    assert before == {path: path.stat().st_mtime_ns for path in uninterrupted.rglob("*") if path.is_file()}


def test_no_checkpoint_outlives_its_run(uninterrupted):
    assert not list(uninterrupted.rglob("checkpoint-*"))
