import pytest

from advnas.costs.amounts import parse_amount, split_limits


@pytest.mark.parametrize(
    ("text", "unit", "amount"),
    [
        ("100k", "", 1e5),
        ("1.5M", "", 1.5e6),
        ("100_000", "", 1e5),
        ("1,500,000", "", 1.5e6),
        ("+1,500.25 us", "ms", 1.50025),
        ("1,500k", "", 1.5e6),
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


@pytest.mark.parametrize("text", ["1,5ms", "1,5", "1,50,000", "1500,000", "1,5000", ",500", "1,,500", "1,500,00ms"])
def test_a_comma_that_separates_no_thousands_is_refused(text):
    with pytest.raises(ValueError, match=rf"commas separate thousands.* got '{text}'\. Write a decimal point"):
        parse_amount(text, "latency", "ms")


@pytest.mark.parametrize("text", ["0", "5 parsecs", "1,5"])
def test_a_penalty_is_told_as_one(text):
    with pytest.raises(ValueError, match=r"^A penalty of parameters must be"):
        parse_amount(text, "parameters", "", "penalty")


def test_limits_are_names_and_amounts():
    assert split_limits(["parameters=100k", "latency = 5ms"]) == {"parameters": "100k", "latency": "5ms"}
    for bad in (["parameters"], ["=3"], ["a="], ["a=1", "a=2"]):
        with pytest.raises(ValueError, match="name=amount"):
            split_limits(bad)
