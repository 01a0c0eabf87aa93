import pytest

from advnas import strategies
from advnas.testing import check_strategy

VARIANTS = [
    ("contrast", {"rivals": 2}),
    ("contrast", {"rivals": None}),
    ("advantage", {"zero_rule": False}),
    ("exact_advantage", {"zero_rule": True}),
    ("enas", {"learning_rate": 0.01, "tanh_constant": None, "temperature": 1.0, "entropy_weight": 0.01}),
    ("parsec", {"samples": 2}),
    ("parsec", {"minibatch_per_draw": True}),
    ("proxyless", {"both_active": True}),
    ("darts", {"second_order": True}),
]


@pytest.mark.parametrize(("name", "options"), [*((name, {}) for name in strategies.names()), *VARIANTS])
def test_every_strategy_holds_the_rules(name, options):
    check_strategy(strategies.get(name, **options), independent=name != "enas")
