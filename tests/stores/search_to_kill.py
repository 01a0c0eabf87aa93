"""Start searches with a disk store, each in a process that kills itself at an aimed moment.

    python search_to_kill.py FOLDER EPOCHS MOMENT...

A moment is the name of a function and the number of the call before or after which the process dies, such as
`fsync:3:before`. Each search has a folder of its own, named after its moment. Forked, so that torch is loaded once.
"""
# ruff: noqa: I001  # where a script finds its neighbours, a linter cannot know

import os
import signal
import sys
from pathlib import Path

import torch
from conftest import loss_of, search_with, task

from advnas import stores as weights


def arm(moment):
    name, number, when = moment.split(":")
    original, calls = getattr(os, name), 0

    def deadly(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == int(number) and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            return original(*args, **kwargs)
        finally:
            if calls == int(number):
                os.kill(os.getpid(), signal.SIGKILL)

    setattr(os, name, deadly)


def main(folder, epochs, *moments):
    torch.set_num_threads(1)
    search_with("resident").weight_step(loss_of)  # torch loads much of itself on first use
    for moment in moments:
        child = os.fork()
        if child == 0:
            search = search_with(weights.Disk(600_000), steps=None)
            arm(moment)
            search.run(task(), epochs=int(epochs), warmup=1, folder=Path(folder) / moment)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), f"{moment} never came, status {status}"
        assert os.WTERMSIG(status) == signal.SIGKILL


main(*sys.argv[1:])
