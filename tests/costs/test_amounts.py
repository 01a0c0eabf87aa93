import pytest

from advnas.costs.amounts import parse_amount, split_limits


@pytest.mark.parametrize(
    ("text", "unit", "amount"),
    [
        ("100k", "", 1e5),
        ("1.5M", "", 1.5e6),
        ("100_000", "", 1e5),
        (250, "", 250),
        ("5ms", "ms", 5),
        ("5", "ms", 5),
        ("2 s", "ms", 2000),
        ("500us", "ms", 0.5),
        ("2MB", "bytes", 2e6),
        ("1MiB", "bytes", 2**20),
        ("3.5mJ", "mJ", 3.5),
        ("1e6", "", 1e6),
    ],
)
def test_amounts_as_people_write_them(text, unit, amount):
    assert parse_amount(text, "some", unit) == amount


@pytest.mark.parametrize(
    ("text", "unit"),
    [("5ms", ""), ("5 parsecs", "ms"), ("", ""), ("-3", ""), ("0", ""), ("nan", ""), ("1e999", "")],
)
def test_other_amounts_are_refused_with_what_was_written(text, unit):
    with pytest.raises(ValueError, match=rf"A limit of parameters must be .* got '{text}'"):
        parse_amount(text, "parameters", unit)


def test_limits_are_names_and_amounts():
    assert split_limits(["parameters=100k", "latency = 5ms"]) == {"parameters": "100k", "latency": "5ms"}
    for bad in (["parameters"], ["=3"], ["a="], ["a=1", "a=2"]):
        with pytest.raises(ValueError, match="name=amount"):
            split_limits(bad)
