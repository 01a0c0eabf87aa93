"""How do memory and time of a search grow with the number of candidates, and with where they live?

The `mobile` space with 4, 16 and 64 candidates per layer, searched with the weights resident, in host memory and on
disk, and densely (darts, all candidates in every step), against plain training of single architectures. Every row
is measured in a process of its own. A checksum over all weights and optimiser state says whether the stores agree.

    .venv/bin/python benchmarks/memory_scaling.py --json
    .venv/bin/python benchmarks/memory_scaling.py --large --folder /on/a/disk --json

`--large` searches a parent network of more than 8 GB with weights="disk" inside a limit of 2 GB: the process may
not have more private memory than that (RLIMIT_DATA), and fails if its resident memory, the pages of the mapped file
included, was ever larger.
"""

import argparse
import ctypes
import gc
import hashlib
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from advnas import Search, SearchSpace
from advnas import stores as weights
from advnas.arguments import parse_size
from advnas.randomness import generator, seed_of
from advnas.search import PAPER_WEIGHTS, LossOf
from advnas.search.device import keep_kernels
from advnas.spaces.mobile import SMALL_IMAGES, MakeCandidates, MobileNetwork, many_candidates

Row = dict[str, Any]
Cost = tuple[float, float]


@dataclass(frozen=True)
class Setting:
    """What one process measures.

    store: "plain" trains single architectures, "resident", "host" and "disk" search, "dense" searches with darts.
        "cold" is "disk" on a machine without memory to spare: between the steps everything is written to the disk
        and dropped, also from the kernel's cache. The writing is not part of a step's time, the reading is.
    budget: of the disk store. limit: of the process, or None. folder: of the scratch file.
    """

    store: str = "resident"
    candidates: int = 4
    width: float = 1.0
    batch: int = 16
    side: int = 16
    steps: int = 20
    budget: str = "100MB"
    limit: str | None = None
    folder: str | None = None
    seed: int = 0


LARGE = Setting(candidates=64, width=2.75, batch=8, side=8, steps=200, budget="1GB")
DENSE_STEPS = 3


def main() -> None:
    options = parse_arguments()
    if options.measure is not None:
        keep_kernels()
        print(json.dumps(measure(Setting(**json.loads(options.measure)))))
        return
    if options.large:
        # RLIMIT_DATA counts the address space that kernels reserve. Rows that are compared keep equally many.
        os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "1024")
    rows = [measured_in_a_process(setting) for setting in plan(options)]
    add_ratios(rows)
    print(json.dumps(rows, indent=1) if options.json else table(rows))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print a list of JSON objects")
    parser.add_argument("--candidates", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--stores", nargs="+", default=["plain", "resident", "host", "disk", "cold", "dense"])
    parser.add_argument("--large", action="store_true", help="a parent of more than 8 GB inside 2 GB")
    parser.add_argument("--limit", default="2GB", help="of the disk search in --large")
    parser.add_argument("--folder", default=None, help="for the scratch file; on a disk, not in memory")
    for name in ("width", "batch", "side", "steps", "budget"):
        kind = type(getattr(Setting, name))
        parser.add_argument(f"--{name}", type=kind, default=None, help="instead of the usual one")
    parser.add_argument("--measure", default=None, help=argparse.SUPPRESS)
    return parser.parse_args()


def plan(options: argparse.Namespace) -> Iterator[Setting]:
    """One setting a row."""
    names = ("width", "batch", "side", "steps", "budget", "folder")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if options.large:
        large = replace(LARGE, **given)
        yield replace(large, store="plain")
        yield replace(large, store="disk", limit=options.limit)
        yield from (replace(large, store=store) for store in ("cold", "resident") if store in options.stores)
        return
    for candidates in options.candidates:
        for store in options.stores:
            setting = replace(Setting(store=store, candidates=candidates), **given)
            yield replace(setting, steps=min(DENSE_STEPS, setting.steps)) if store == "dense" else setting


def measured_in_a_process(setting: Setting) -> Row:
    """A fresh process has a peak of its own."""
    print(f"{setting.store}, {setting.candidates} candidates", file=sys.stderr)
    command = [sys.executable, __file__, "--measure", json.dumps(asdict(setting))]
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if process.returncode:
        return {"store": setting.store, "candidates": setting.candidates, "failed": process.returncode}
    row: Row = json.loads(process.stdout.splitlines()[-1])
    return row


def measure(setting: Setting) -> Row:
    """Train or search, and report bytes and seconds."""
    imported = peak_memory()
    if setting.limit is not None:
        limit = parse_size(setting.limit)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        return_freed_memory()
    start = time.perf_counter()
    results = (measure_plain if setting.store == "plain" else measure_search)(setting)
    peak = peak_memory()
    if setting.limit is not None and peak > parse_size(setting.limit):
        raise MemoryError(f"{peak} bytes were resident, and the limit is {setting.limit}.")
    return {
        **{key: value for key, value in asdict(setting).items() if key != "folder"},
        **results,
        "peak_resident_MB": round(peak / 1e6),
        "peak_without_imports_MB": round((peak - imported) / 1e6),
        "seconds_in_all": round(time.perf_counter() - start, 1),
        "threads": torch.get_num_threads(),
        "commit": commit(),
    }


def return_freed_memory() -> None:
    """Make glibc give memory back as soon as it is freed: it would keep hundreds of megabytes between the steps.

    Costs time, as the next step has to fault its memory in again. MALLOC_MMAP_THRESHOLD_=262144 does the same.
    """
    if platform.libc_ver()[0] == "glibc":
        mmap_threshold = -3  # M_MMAP_THRESHOLD of malloc.h
        ctypes.CDLL(None).mallopt(mmap_threshold, 2**18)


def measure_plain(setting: Setting) -> Row:
    """Some architectures, each trained by itself as anybody would."""
    times: list[Cost] = []
    loss_of, architectures = make_loss(setting), 5
    for number in range(architectures):
        model = one_architecture(setting, number)
        parameters = list(model.parameters())
        optimizer = PAPER_WEIGHTS(parameters)

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)  # noqa: B023  # called at once
            loss_of(model).backward()  # type: ignore[no-untyped-call]  # noqa: B023
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)  # noqa: B023
            optimizer.step()  # noqa: B023

        times += [seconds(step) for _ in range(max(2, min(setting.steps, 30) // architectures))][1:]
    size = 2 * sum(parameter.nbytes for parameter in parameters)
    return {"parent_MB": round(size / 1e6), **summary("weight_step", times)}


def one_architecture(setting: Setting, number: int) -> nn.Module:
    """A network without a choice: at every layer one of the candidates, drawn at random."""
    random = generator(setting.seed, 1, number)
    make = many_candidates(setting.candidates)

    def one(inputs: int, outputs: int, stride: int) -> dict[str, nn.Module]:
        with torch.device("meta"):
            candidates = make(inputs, outputs, stride)
        name = list(candidates)[int(torch.randint(len(candidates), (), generator=random))]
        drawn = candidates[name].to_empty(device="cpu")
        for part in drawn.modules():
            if isinstance(part, nn.Conv2d):
                part.reset_parameters()
        return {name: drawn}

    space = SearchSpace(make_network(setting, one))
    return space.derive(next(space.architectures()))


def make_network(setting: Setting, candidates: MakeCandidates) -> MobileNetwork:
    torch.manual_seed(seed_of(setting.seed))
    return MobileNetwork(width=setting.width, classes=10, stem_stride=1, stages=SMALL_IMAGES, candidates=candidates)


def make_loss(setting: Setting) -> LossOf:
    random = generator(setting.seed)
    images = torch.randn(setting.batch, 3, setting.side, setting.side, generator=random)
    labels = torch.randint(10, (setting.batch,), generator=random)
    return lambda model: F.cross_entropy(model(images), labels)


def measure_search(setting: Setting) -> Row:
    start = time.perf_counter()
    store = make_store(setting)
    search = make_search(setting, store)
    built = time.perf_counter() - start
    loss_of = make_loss(setting)
    weight_steps, architecture_steps = [], []
    for _ in range(setting.steps):
        chill(setting, store)
        weight_steps.append(seconds(lambda: search.weight_step(loss_of)))
        chill(setting, store)
        architecture_steps.append(seconds(lambda: search.architecture_step(loss_of)))
    tail = len(weight_steps) // 4  # the first steps load code and make optimiser state
    size, checksum = weigh(search, store)
    return {
        "parent_MB": round(size / 1e6),
        "build_seconds": round(built, 2),
        **summary("weight_step", weight_steps[tail:]),
        **summary("architecture_step", architecture_steps[tail:]),
        "argmax": search.argmax().digest,
        "checksum": checksum,
    }


def chill(setting: Setting, store: weights.Store) -> None:
    if setting.store == "cold" and isinstance(store, weights.Disk):
        store.release(cached=False)


def make_store(setting: Setting) -> weights.Store:
    if setting.store in ("disk", "cold"):
        return weights.Disk(setting.budget, folder=setting.folder)
    return weights.Host() if setting.store == "host" else weights.Resident()


def make_search(setting: Setting, store: weights.Store) -> Search:
    with store.building() if isinstance(store, weights.Disk) else nullcontext():
        network = make_network(setting, many_candidates(setting.candidates))
    strategy, steps = "darts" if setting.store == "dense" else "advantage", 1_000_000
    return Search(network, strategy, steps=steps, weights=store, seed=setting.seed)


def weigh(search: Search, store: weights.Store) -> tuple[int, str]:
    """Bytes and checksum of all weights and optimiser state, letting go of what was read on the way."""
    state = search.state()["weights"]
    tensors: list[Tensor] = list(state["model"].values())
    for values in state["optimizer"]["state"].values():
        tensors += [value for value in values.values() if isinstance(value, Tensor)]
    digest = hashlib.sha256()
    for number, tensor in enumerate(tensors):
        digest.update(memoryview(tensor.detach().contiguous().numpy()))  # type: ignore[arg-type]
        if isinstance(store, weights.Disk) and number % 100 == 0:
            store.release()
    return sum(tensor.nbytes for tensor in tensors), digest.hexdigest()[:16]


def peak_memory() -> int:
    """The most bytes that were ever resident in this process, the pages of mapped files included."""
    gc.collect()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def seconds(step: Callable[[], object]) -> Cost:
    start, start_busy = time.perf_counter(), time.process_time()
    step()
    return time.perf_counter() - start, time.process_time() - start_busy


def summary(name: str, costs: list[Cost]) -> Row:
    """Seconds as the wall clock and as the processor counts them; other work on the machine changes the first."""
    clock, busy = zip(*costs, strict=True)
    return {
        name: round(statistics.median(clock), 4),
        f"{name}_mean": round(statistics.mean(clock), 4),
        f"{name}_slowest": round(max(clock), 4),
        f"{name}_cpu": round(statistics.mean(busy), 4),
    }


def commit() -> str:
    command = ["git", "-C", os.fspath(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def add_ratios(rows: list[Row]) -> None:
    """To plain training and to the resident search of the same number of candidates."""
    for row in rows:
        for name in ("plain", "resident"):
            others = [r for r in rows if r["store"] == name and r["candidates"] == row["candidates"]]
            for other in others:
                if "failed" in row or "failed" in other:
                    continue
                row[f"weight_step_to_{name}"] = round(row["weight_step"] / other["weight_step"], 3)
                row[f"weight_step_cpu_to_{name}"] = round(row["weight_step_cpu"] / other["weight_step_cpu"], 3)
                row[f"memory_to_{name}"] = round(row["peak_resident_MB"] / other["peak_resident_MB"], 3)
                if name == "resident" and row["store"] in ("host", "disk", "cold"):
                    row["identical_to_resident"] = row["checksum"] == other["checksum"]


def table(rows: list[Row]) -> str:
    columns = {
        "candidates": "candidates",
        "store": "store",
        "parent_MB": "weights and state, MB",
        "peak_resident_MB": "peak resident, MB",
        "weight_step": "weight step, s",
        "architecture_step": "architecture step, s",
        "weight_step_to_plain": "weight step to plain",
        "weight_step_to_resident": "to resident",
        "weight_step_cpu_to_resident": "processor time to resident",
        "identical_to_resident": "bit-identical",
    }
    lines = [" | ".join(columns.values())]
    for row in rows:
        cells = (row.get(key, "") for key in columns)
        lines.append(" | ".join(f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in cells))
    return "\n".join(lines)


if __name__ == "__main__":
    main()
