"""Locks: one process at a time owns a run folder, and a dead one owns nothing."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from advnas.records import locks
from advnas.records.locks import FolderInUse, lock

HOLD = """
import sys, time
from advnas.records.locks import lock
with lock(sys.argv[1]):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(locks, "_PATIENCE", 0.1)


@contextmanager
def held_by_another(folder):
    """A process that owns the folder until its input is closed."""
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "locked\n"
        yield process


def test_a_second_process_is_told_who_owns_the_folder_and_changes_nothing(tmp_path):
    with held_by_another(tmp_path) as process:
        before = (tmp_path / "lock").read_bytes()
        message = (
            rf"{tmp_path} is in use by process {process.pid} on host {socket.gethostname()} since "
            r"\d{4}-\d\d-\d\d .*; wait for it or give another folder\. Nothing was changed\."
        )
        with pytest.raises(FolderInUse, match=message), lock(tmp_path):
            pytest.fail("two processes own the folder")
        assert (tmp_path / "lock").read_bytes() == before
        assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_a_killed_process_owns_nothing(tmp_path):
    with held_by_another(tmp_path) as process:
        process.send_signal(signal.SIGKILL)
    assert (tmp_path / "lock").exists()
    with lock(tmp_path):
        assert f'"process": {os.getpid()}' in (tmp_path / "lock").read_text()
    assert not list(tmp_path.iterdir())


def test_a_process_that_is_just_ending_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "_PATIENCE", 30)
    with held_by_another(tmp_path) as process:
        process.stdin.close()
        with lock(tmp_path):
            pass
    assert not list(tmp_path.iterdir())


def test_the_same_process_cannot_enter_twice_but_again(tmp_path):
    for _ in range(2):
        with lock(tmp_path / "deep"):
            message = rf"in use by this process, process {os.getpid()} on"
            with pytest.raises(FolderInUse, match=message), lock(tmp_path / "deep"):
                pytest.fail("the folder is owned twice")
            with lock(tmp_path):
                pass


def test_an_error_releases_the_folder(tmp_path):
    def fail():
        with lock(tmp_path):
            raise InterruptedError

    for _ in range(2):
        with pytest.raises(InterruptedError):
            fail()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_does_not_keep_the_folder_of_its_parent(tmp_path):
    end, start = os.pipe()
    with lock(tmp_path):
        child = os.fork()
        if not child:
            os.close(start)
            os.read(end, 1)  # until the parent closes its side
            os._exit(0)
    try:
        with lock(tmp_path):
            pass
    finally:
        os.close(start)
        os.close(end)
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("content", [b"", b"rubbish", b"[]", b"{}"])
def test_an_owner_that_has_not_said_who_it_is(tmp_path, content):
    with lock(tmp_path):
        (tmp_path / "lock").write_bytes(content)
        with pytest.raises(FolderInUse, match=r"is in use by another process; wait"), lock(tmp_path):
            pytest.fail("two processes own the folder")


def test_a_file_system_without_locks_is_said(tmp_path, monkeypatch):
    def unsupported(*arguments):
        raise OSError(locks.errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(locks.fcntl, "flock", unsupported)
    with pytest.warns(UserWarning, match=r"has no locks \(Operation not supported\)"), lock(tmp_path):
        assert (tmp_path / "lock").exists()


def test_many_processes_never_own_a_folder_together(tmp_path):
    """Each takes the lock, leaves a file that nobody else may find, and goes: also while others wait."""
    program = (
        "import sys, time, pathlib\nfrom advnas.records import locks\nlocks._PATIENCE = 60; locks._POLL = 0.0005\n"
        "mine = pathlib.Path(sys.argv[1]) / 'mine'\n"
        "for _ in range(60):\n"
        "    with locks.lock(sys.argv[1]):\n"
        "        mine.open('x').close(); time.sleep(0.0002); mine.unlink()\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path)]) for _ in range(3)]
    deadline = time.monotonic() + 60
    assert [process.wait(deadline - time.monotonic()) for process in processes] == [0, 0, 0]
    assert not list(tmp_path.iterdir())
