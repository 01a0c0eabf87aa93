import math
import sysconfig

import pytest
import torch
from torch import nn

from advnas.tasks import python_source
from advnas.tasks.python_source import Pieces, bits_per_character, build, texts


class Uniform(nn.Module):
    """Every character is as likely as any other."""

    def forward(self, x):
        return torch.zeros(x.shape[0], 128, x.shape[1])


def test_the_three_texts_are_source_code_of_different_files():
    found = [bytes(text.tolist()).decode("ascii") for text in texts()]
    assert all("import" in text and "def " in text for text in found)
    assert len(found[0]) > 5 * max(len(found[1]), len(found[2]))
    first_lines = [text[:200] for text in found]
    assert len(set(first_lines)) == 3


def test_the_next_character_is_asked_for():
    seen, following = next(iter(Pieces(torch.arange(100, dtype=torch.uint8), batch=3, context=5, steps=1)))
    assert seen.shape == following.shape == (3, 5)
    assert torch.equal(seen + 1, following)


def test_a_model_that_knows_nothing_needs_seven_bits():
    assert bits_per_character(Uniform(), next(iter(build(steps=1).training))).item() == pytest.approx(7)


def test_an_epoch_has_as_many_minibatches_as_asked_for_and_each_time_others():
    task = build(batch=2, context=8, steps=3)
    torch.manual_seed(0)
    first, second = list(task.training), list(task.training)
    assert len(first) == len(task.training) == 3
    assert not torch.equal(first[0][0], second[0][0])
    assert task.examples == 16


def test_all_answers_are_judged_by_the_same_pieces():
    one, other = (torch.cat([seen for seen, _ in build().test]) for _ in range(2))
    assert torch.equal(one, other)
    assert len({tuple(row) for row in one.tolist()}) > 600


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"context": -1}, {"steps": 1.5}, {"context": 10**9}])
def test_wrong_sizes_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        build(**wrong)


def test_a_python_without_its_sources_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    texts.cache_clear()
    with pytest.raises(FileNotFoundError, match="--task digits"):
        texts()
    texts.cache_clear()


def test_bits_are_nats_divided_by_the_logarithm_of_two():
    model, batch = Uniform(), (torch.zeros(1, 4, dtype=torch.long), torch.zeros(1, 4, dtype=torch.long))
    assert bits_per_character(model, batch).item() * math.log(2) == pytest.approx(math.log(128))
    assert python_source.CHARACTERS == 128
