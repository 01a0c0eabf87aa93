"""A strategy is two methods: what runs, and how theta's gradient is made of what comes back."""

import runpy
from pathlib import Path

from advnas.testing import check_strategy

SMALLEST = Path(__file__).with_name("smallest_strategy.py")


def test_the_smallest_strategy_fits_in_fifteen_lines():
    assert len(SMALLEST.read_text().splitlines()) <= 15


def test_the_smallest_strategy_holds_the_rules():
    check_strategy(runpy.run_path(str(SMALLEST))["Smallest"]())
