"""Files of options: strict, and never a way to run code or to fail without a word."""

import random
import tomllib

import pytest

from advnas.cli.commands import Search
from advnas.cli.config import completed, read, written

GOOD = b"""entry = "my_module:make_search"
strategy = "gdas"
epochs = 12
warmup = 3
seeds = 2
folder = "runs/mine"
precision = "bfloat16"

[options]
width = 32
rates = [0.1, 0.02]
name = "a \\"quoted\\" name"
"""


def test_the_command_line_goes_before_the_file(tmp_path):
    path = tmp_path / "search.toml"
    path.write_bytes(GOOD)
    search, options = completed(Search(epochs=5, strategy=None), path, {"width": 8})
    assert (search.epochs, search.strategy, search.warmup, search.jobs) == (5, "gdas", 3, None)
    assert options == {"width": 8, "rates": [0.1, 0.02], "name": 'a "quoted" name'}


def test_what_was_asked_for_can_be_asked_for_again(tmp_path):
    path = tmp_path / "search.toml"
    path.write_bytes(GOOD)
    search, options = completed(Search(), path, {})
    options |= {"nested": {"a b": [1, {"c": True}]}, "tiny": 1e-300, "huge": float("inf")}
    options |= {"\U0001f600": 'a\U0001f600\x7f\n"'}
    path.write_text(written(search, options), encoding="utf-8")
    again, options_again = completed(Search(folder=search.folder), path, {})
    assert (again, options_again) == (search, options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch = 3", "no 'epoch'. Did you mean 'epochs'"),
        ("zzz = 3", "no 'zzz'. Known are entry, strategy"),
        ('epochs = "three"', "epochs must be a whole number, got 'three'"),
        ("epochs = true", "epochs must be a whole number, got True"),
        ("strategy = 3", "strategy must be a text in quotes, got 3"),
        ("options = 3", r"options must be a table, written \[options\]"),
        ("epochs = 3\nepochs = 4", "not TOML"),
        ("epochs", "not TOML"),
        ("json = true", "no 'json'"),
    ],
)
def test_what_is_wrong_is_named(text, message, tmp_path):
    path = tmp_path / "search.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        read(path)
    assert str(path) in str(error.value)


def mutated(content, dice):
    """A few random changes: bytes, cuts, repeats, swaps, and words of TOML in the wrong place."""
    content = bytearray(content)
    for _ in range(dice.randint(1, 4)):
        place, kind = dice.randrange(len(content) + 1), dice.randrange(6)
        if kind == 0 and place < len(content):
            content[place] = dice.randrange(256)
        elif kind == 1:
            del content[place : place + dice.randint(1, 20)]
        elif kind == 2:
            content[place:place] = bytes(dice.randrange(256) for _ in range(dice.randint(1, 5)))
        elif kind == 3:
            content[place:place] = content[: dice.randint(1, 40)]
        elif kind == 4:
            content[place:place] = dice.choice(
                [b"[", b"]", b"=", b'"', b"\n", b"'''", b"{", b"[[x]]\n", b"inf", b"\x00"]
            )
        else:
            content = content[place:] + content[:place]
        content = content or bytearray(b"\xff")
    return bytes(content)


def refusal(path):
    """What a file is refused with, if it is."""
    try:
        assert read(path) == tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        return str(error)


def test_2000_damaged_files_are_read_or_refused_with_their_name(tmp_path):
    dice, path, refused = random.Random(0), tmp_path / "search.toml", 0
    for _ in range(2000):
        path.write_bytes(mutated(GOOD, dice))
        message = refusal(path)
        refused += message is not None
        assert message is None or str(path) in message
    assert refused > 1000


def test_a_file_that_nests_without_end_is_refused(tmp_path):
    path = tmp_path / "search.toml"
    path.write_text("options = " + "[" * 100_000)
    with pytest.raises(ValueError, match=r"search\.toml"):
        read(path)
