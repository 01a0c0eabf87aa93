"""Two processes that somebody else has connected, of which one stops the search: connected.py FOLDER."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from advnas import Callback, Choice, Search, StopSearch, Task
from advnas.parallel.launch import current, joined, spawn


class StopInOne(Callback):
    """Only rank 1 asks for it, after its third weight step."""

    def step(self, run, step):
        if run.search.group.rank == 1 and step.phase == "weights" and step.number == 3:
            raise StopSearch("rank 1 has seen enough")


def work(folder):
    dist.init_process_group("cpu:gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), Choice({"a": nn.Linear(2, 2), "b": nn.Identity()}, name="x"))
    data = list(torch.randn(16, 4, 2))
    with joined() as group:
        assert current() is group
        search = Search(model, group=group)
        task = Task(data, data, lambda model, batch: model(batch).square().mean())
        search.run(task, epochs=4, folder=folder / "run", callbacks=[StopInOne()])
    found = {"size": group.size, "steps": search.weight_steps, "connected": dist.is_initialized()}
    (folder / f"{group.rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    spawn(work, (Path(sys.argv[1]),), 2)
