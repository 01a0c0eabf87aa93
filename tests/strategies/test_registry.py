import dataclasses

import pytest
from torch import nn

from advnas import Choice, Search, strategies
from advnas.strategies.advantage import Advantage
from advnas.strategies.parsec import Parsec


def test_all_strategies_have_a_name():
    assert strategies.names() == (
        "contrast",
        "exact_contrast",
        "advantage",
        "exact_advantage",
        "reinforce",
        "enas",
        "parsec",
        "proxyless",
        "gdas",
        "darts",
        "snas",
        "nasp",
        "random",
        "ranked_random",
    )


def test_get_makes_a_strategy_with_its_options():
    assert strategies.get("advantage") == Advantage()
    assert strategies.get("parsec", samples=4) == Parsec(samples=4)


@pytest.mark.parametrize("name", strategies.names())
def test_options_are_the_defaults_of_the_strategy(name):
    assert strategies.options(name) == dataclasses.asdict(strategies.get(name))
    assert strategies.get(name, **strategies.options(name)) == strategies.get(name)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("advantge", "advantage"), ("reinforced", "reinforce"), ("proxylessnas", "proxyless"), ("drats", "darts")],
)
def test_a_misspelt_strategy_is_told_what_was_meant(name, meant):
    message = rf"no strategy '{name}' \(did you mean '{meant}'\?\)\. Choose one of contrast, .*, ranked_random\."
    with pytest.raises(ValueError, match=message):
        strategies.get(name)


def test_a_strategy_like_no_other_is_told_all_names():
    with pytest.raises(ValueError, match=r"no strategy 'xyz'\. Choose one of contrast, .*, ranked_random\."):
        strategies.get("xyz")


def test_a_misspelt_option_is_told_what_was_meant():
    message = r"'parsec' has no option 'sample' \(did you mean 'samples'\?\); it takes samples, examples, minibatch"
    with pytest.raises(ValueError, match=message):
        strategies.get("parsec", sample=4)


def test_an_option_of_a_strategy_that_has_none_is_refused():
    with pytest.raises(ValueError, match="'random' has no option 'seed'; it takes none"):
        strategies.get("random", seed=1)


def test_parsec_needs_draws_to_compare():
    with pytest.raises(ValueError, match="needs samples >= 2, got 1"):
        strategies.get("parsec", samples=1)


def test_the_baselines_are_those_that_do_not_learn():
    assert strategies.baselines() == ("random", "ranked_random")
    assert [strategies.strategy_type(name).answer for name in strategies.baselines()] == ["process_best", "ranked"]
    learning = [name for name in strategies.names() if strategies.strategy_type(name).learns]
    assert {*learning, *strategies.baselines()} == set(strategies.names())


SIZES = (4, 4, 6, 2)


def test_every_strategy_says_what_an_architecture_step_costs():
    costs = {name: strategies.get(name).architecture_passes(SIZES) for name in strategies.names()}
    assert costs == pytest.approx(
        {
            "contrast": 3.4,
            "exact_contrast": 5,
            "advantage": 2.5,
            "exact_advantage": 5,
            "reinforce": 1,
            "enas": 1,
            "parsec": 8,
            "proxyless": 3.4,
            "gdas": 2.5,
            "darts": 10,
            "snas": 10,
            "nasp": 5.2,
            "random": 1,
            "ranked_random": 3.4,
        }
    )
    assert strategies.get("contrast", rivals=3).architecture_passes(SIZES) == pytest.approx(5.2)
    assert strategies.get("contrast", rivals=None).architecture_passes(SIZES) == pytest.approx(7)
    assert strategies.get("parsec", minibatch_per_draw=True).architecture_passes(SIZES) == 1
    assert strategies.get("darts", second_order=True).architecture_passes(SIZES) == 40


def test_a_ranking_needs_passes():
    with pytest.raises(ValueError, match=r"passes must be positive, got 0\. Write for example passes=3\.4\."):
        strategies.get("ranked_random", passes=0)


def test_a_strategy_is_told_what_it_asks_for_about_the_task():
    facts = {"examples": 32, "controller_rate": 0.01, "language": "English"}
    assert strategies.for_task("parsec", **facts) == strategies.get("parsec", examples=32)
    assert strategies.for_task("enas", **facts) == strategies.get("enas", learning_rate=0.01)
    assert strategies.for_task("advantage", **facts) == strategies.get("advantage")


def test_what_is_not_known_about_a_task_is_left_at_its_default():
    assert strategies.for_task("parsec", examples=None) == strategies.get("parsec")
    assert strategies.for_task("parsec") == strategies.get("parsec")


def test_a_misspelt_strategy_is_refused_for_a_task_too():
    with pytest.raises(ValueError, match="did you mean 'parsec'"):
        strategies.for_task("parsek", examples=32)


def test_no_strategy_inherits_another():
    assert all(strategies.strategy_type(name).__bases__ == (strategies.Strategy,) for name in strategies.names())


def test_strategies_that_mix_operations_have_no_process_best():
    without = [name for name in strategies.names() if "process_best" not in strategies.answers_of(name)]
    assert without == ["darts", "snas"]
    assert strategies.answers_of("darts") == ("argmax", "ranked", "refined")


def test_a_strategy_of_ones_own_has_all_that_a_strategy_has():
    class Two:
        def draw(self, logits, state, phase, progress, generator): ...

        def gradient(self, feedback, draw, logits, state): ...

    with pytest.raises(
        TypeError, match=r"Two is no strategy: it has no weight_operations, .*class Two\(Strategy\)"
    ):
        Search(nn.Sequential(Choice({"a": nn.Tanh(), "b": nn.ReLU()})), Two())
    with pytest.raises(TypeError, match=r"got a class\. Write Advantage\(\)"):
        strategies.made(Advantage)
    assert strategies.made("contrast") == strategies.get("contrast")
