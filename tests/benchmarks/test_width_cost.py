"""The benchmark of widths runs, and searches with more widths keep no more bytes."""

import json
import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "width_cost.py"


def test_the_benchmark_of_widths_runs():
    command = [sys.executable, str(BENCHMARK), "--quick", "--json"]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    (rows,) = json.loads(process.stdout).values()
    assert set(rows) == {"contrast", "advantage"}
    for row in rows.values():
        assert row["weight_step_bytes"] == 1  # the same drawn widths, so the same tensors
        assert all(value > 0 for value in row.values())
