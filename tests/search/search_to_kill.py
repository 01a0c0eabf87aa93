"""A small search in a process that is killed at a given moment: `python search_to_kill.py`, then orders on stdin.

An order is a line of JSON: [FOLDER, STRATEGY, STORE, MOMENT]. A fork of this process, which has imported torch
already, carries it out, and a line of JSON tells how that ended: [EXIT CODE, SECONDS]. A moment is null, or
["seconds", T], or [NAME, N]: just before the N-th time, counted from 1, that anything of that name is called; "" is
all names. A fork that comes to its end leaves `end.pt` and `calls.json`, which tells what was called how often.
"""

import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from advnas import Choice, Search, Task, Zero
from advnas.records.checkpoints import save_state

EPOCHS, WARMUP = 10, 1


def network():
    torch.manual_seed(0)
    normed = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())
    return nn.Sequential(
        nn.Linear(3, 4),
        nn.BatchNorm1d(4),
        Choice({"linear": nn.Linear(4, 4), "skip": nn.Identity(), "zero": Zero()}, name="first"),
        nn.Dropout(0.2),
        Choice({"normed": normed, "narrow": nn.Linear(4, 4)}, name="second"),
        nn.Linear(4, 1),
    )


def task():
    random = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(24, 3, generator=random), torch.randn(24, 1, generator=random))
    loss = lambda model, batch: F.mse_loss(model(batch[0]), batch[1])  # noqa: E731
    return Task(DataLoader(data, 6, shuffle=True), DataLoader(data, 9, shuffle=True), loss)


class Trap:
    """Counts all calls, of Python functions and of others, and kills the process at one of them."""

    def __init__(self, name, number):
        self.place, self.calls = (name, number), Counter()

    def __call__(self, frame, event, argument):
        if event in ("call", "c_call"):
            called = frame.f_code.co_name if event == "call" else argument.__name__
            for name in ("", called):
                self.calls[name] += 1
                if self.place == (name, self.calls[name]):
                    os.kill(os.getpid(), signal.SIGKILL)


def search(folder, strategy, store, moment):
    """The life of a fork."""
    torch.manual_seed(time.time_ns())  # whatever happened before
    trap = Trap(*(moment or ("", 0)))
    model, data = network(), task()
    sys.setprofile(trap)
    running = Search(model, strategy, seed=3, weights=store, memory_budget="2MB" if store == "disk" else None)
    running.run(data, epochs=EPOCHS, warmup=WARMUP, folder=folder, resume=True)
    sys.setprofile(None)
    save_state(folder / "end.pt", running.state())
    (folder / "calls.json").write_text(json.dumps(trap.calls))


def carry_out(folder, strategy, store, moment):
    """Fork, wait, and tell how it ended."""
    start, fork = time.monotonic(), os.fork()
    if not fork:
        try:
            search(Path(folder), strategy, store, moment)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    if moment and moment[0] == "seconds":
        time.sleep(moment[1])
        os.kill(fork, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])
    return code, time.monotonic() - start


if __name__ == "__main__":
    torch.set_num_threads(1)
    with (
        tempfile.TemporaryDirectory() as unused
    ):  # torch imports half of itself in its first step: once, not in forks
        for strategy, store in (("advantage", "resident"), ("parsec", "host"), ("enas", "disk")):
            search(Path(unused) / strategy, strategy, store, None)
            search(Path(unused) / strategy, strategy, store, None)
    for line in sys.stdin:
        print(json.dumps(carry_out(*json.loads(line))), flush=True)
