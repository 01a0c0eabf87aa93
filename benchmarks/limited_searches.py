"""Do searches with shared weights end within a limit? Two jobs, each searched without a limit and with one.

python_source: the job of `advnas search` without arguments. mobile: the space `mobile` of 4 channels on the digits.
The limit is half-way between the least parameters possible and those of the answer without a limit, so that this
answer violates it. Told per seed: the parameters of both answers, and after which share of theta's steps the
expected parameters were within the limit for good.

    .venv/bin/python benchmarks/limited_searches.py --json --figure docs/results/budgets/mobile.png
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

from advnas import Search
from advnas.costs import cheapest, operations_of, parameters
from advnas.records.provenance import provenance
from advnas.search import Replayed, SearchRun, Step, run_search
from advnas.search.budget import Budget
from advnas.search.schedule import Length, batches_in
from advnas.studies.built_in import make_search
from advnas.tasks import TASKS

JOBS: dict[str, dict[str, Any]] = {
    "python_source": {"task": "python_source"},
    "mobile": {"task": "digits", "space": "mobile", "channels": 4, "theta_rate": 0.05},
}
EPOCHS = {"mobile": (8, 2)}  # of them warm-up; those of the task elsewhere


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(1)
    rows = []
    for job in options.jobs:
        for seed in options.seeds:
            rows.append(measure(job, seed))
            told = {key: value for key, value in rows[-1].items() if key != "trace"}
            print(json.dumps(told), file=sys.stderr, flush=True)
    if options.figure is not None:
        draw([row for row in rows if row["job"] == "mobile"], options.figure)
    if options.json:
        print(json.dumps(table_of(rows) | {"source": provenance()}, indent=1))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", nargs="+", default=list(JOBS), choices=list(JOBS))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(3)))
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def table_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The table of docs/results/budgets.md."""
    titles = {
        "least": "least",
        "unlimited": "answer without a limit",
        "limit": "limit",
        "limited": "answer with it",
        "expected_at_start": "expected, first step",
        "expected_at_end": "expected, last step",
    }
    columns = [{"title": "job", "field": "job"}, {"title": "seed", "field": "seed", "format": "d"}]
    columns += [{"title": title, "field": field, "format": ",.0f"} for field, title in titles.items()]
    columns.append({"title": "inside after", "field": "inside_after", "format": ".2f"})
    return {
        "columns": columns,
        "rows": [{key: value for key, value in row.items() if key != "trace"} for row in rows],
    }


def measure(job: str, seed: int) -> dict[str, Any]:
    """Search without a limit, then with one."""
    free, _ = run(job, seed, None)
    cost = parameters(free.space)
    lowest = cheapest(cost, operations_of(free.space))
    assert lowest is not None, "without limits there is always one"
    least, unlimited = cost.of(lowest), cost.of(free.argmax())
    limit = (least + unlimited) / 2
    limited, trace = run(job, seed, limit)
    outside = [number for number, share in enumerate(trace) if share > 1]
    return {
        "job": job,
        "seed": seed,
        "least": least,
        "unlimited": unlimited,
        "limit": limit,
        "limited": cost.of(limited.argmax()),
        "expected_at_start": round(trace[0] * limit),
        "expected_at_end": round(trace[-1] * limit),
        "inside_after": round((outside[-1] + 1) / len(trace), 3) if outside else 0.0,
        "trace": [round(share, 4) for share in trace],
    }


def run(job: str, seed: int, limit: float | None) -> tuple[Search, list[float]]:
    """The search, and the expected parameters of every step of theta in units of the limit."""
    search, task = make_search("contrast", seed, **JOBS[job])
    if limit is not None:
        search.policy.budget = Budget.of(search.space, {"parameters": limit}, None, ())
    entry = TASKS[JOBS[job]["task"]]
    epochs, warmup = EPOCHS.get(job, (entry.epochs, entry.warmup))
    trace: list[float] = []

    def note(step: Step) -> None:
        if step.phase == "architecture" and limit is not None:
            trace.append(step.limits["parameters"]["expected"] / limit)

    length = Length(batches_in(task.training), epochs, warmup or 0)
    run_search(SearchRun(search, Replayed.of(task, seed, (0, 1)), length), on_step=note)
    return search, trace


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.4), layout="constrained")
    axes = figure.subplots()
    for row in rows:
        axes.plot(range(1, len(row["trace"]) + 1), row["trace"], lw=1.4, label=f"seed {row['seed']}")
    axes.axhline(1, color="#b4101c", ls="--", lw=1, label="limit")
    axes.set_xlabel("steps of theta")
    axes.set_ylabel("expected parameters / limit")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
