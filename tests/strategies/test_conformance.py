import pytest

from advnas import strategies
from advnas.testing import check_strategy

VARIANTS = [
    ("advantage", {"zero_rule": False}),
    ("exact_advantage", {"zero_rule": True}),
    ("enas", {"learning_rate": 0.01, "entropy_bonus": 0.01}),
    ("parsec", {"samples": 2}),
    ("proxyless", {"both_active": True}),
    ("darts", {"second_order": True}),
]


@pytest.mark.parametrize(("name", "options"), [*((name, {}) for name in strategies.names()), *VARIANTS])
def test_every_strategy_holds_the_rules(name, options):
    check_strategy(strategies.get(name, **options), independent=name != "enas")
