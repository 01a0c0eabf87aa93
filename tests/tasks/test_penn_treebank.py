import math
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from advnas import Callback, Search, SearchSpace, StopSearch
from advnas.randomness import generator
from advnas.spaces.recurrent_cell import RecurrentCellNetwork
from advnas.tasks.penn_treebank import CarriedLoss, Segments, build, perplexity, read

TEXTS = {"train.txt": " the <unk> sat \n the cat sat \n", "valid.txt": "the cat\n", "test.txt": "sat\n"}


def write(folder, **changed):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (TEXTS | {f"{part}.txt": text for part, text in changed.items()}).items():
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def words(corpus, text):
    return " ".join(corpus.vocabulary[number] for number in text.tolist())


# Reading


@pytest.mark.parametrize("place", ["ptb", "."])
def test_it_reads_a_data_folder_or_the_folder_of_the_texts_itself(tmp_path, place):
    write(tmp_path / place)
    corpus = read(tmp_path)
    assert corpus.vocabulary == ("the", "<unk>", "sat", "<eos>", "cat")  # as they first appear
    assert words(corpus, corpus.train) == "the <unk> sat <eos> the cat sat <eos>"
    assert words(corpus, corpus.valid) == "the cat <eos>"
    assert words(corpus, corpus.test) == "sat <eos>"
    assert {text.dtype for text in (corpus.train, corpus.valid, corpus.test)} == {torch.int64}


@pytest.mark.parametrize("text", ["sat\nthe", "sat\nthe\n", "sat \r\n\tthe \r\n"])
def test_every_line_ends_once_however_the_file_does(tmp_path, text):
    corpus = read(write(tmp_path, test=text))
    assert words(corpus, corpus.test) == "sat <eos> the <eos>"


def test_words_that_the_training_text_does_not_have_are_unknown(tmp_path):
    corpus = read(write(tmp_path, valid="the dog sat\n"))
    assert words(corpus, corpus.valid) == "the <unk> sat <eos>"


def test_where_there_is_no_unknown_word_the_error_names_word_and_line(tmp_path):
    write(tmp_path, train="the cat sat\n", valid="the cat\nthe dog\n")
    with pytest.raises(ValueError, match=r"valid\.txt has 'dog' in line 2.* by <unk>"):
        read(tmp_path)


def test_missing_files_are_listed(tmp_path):
    write(tmp_path / "ptb")
    (tmp_path / "ptb" / "valid.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"No Penn Treebank in .*Put train\.txt") as caught:
        read(tmp_path)
    assert str(tmp_path / "ptb" / "valid.txt") in str(caught.value)
    assert str(tmp_path / "ptb" / "train.txt") not in str(caught.value)
    assert str(tmp_path / "train.txt") in str(caught.value)


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_file_is_refused(tmp_path, text):
    with pytest.raises(ValueError, match=r"test\.txt is empty"):
        read(write(tmp_path, test=text))


def test_a_file_that_is_not_text_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"train\.txt is not UTF-8 text \(byte 4"):
        read(write(tmp_path, train=b"the \xff\n"))


def real_folder():
    named = [Path(os.environ["ADVNAS_DATA"])] if "ADVNAS_DATA" in os.environ else []
    for folder in [*named, Path(__file__).parents[3] / "shared" / "data"]:
        if (folder / "ptb" / "train.txt").is_file():
            return folder
    return pytest.skip("needs Penn Treebank: set ADVNAS_DATA to a folder that has ptb/train.txt")


def test_the_real_texts_have_the_known_sizes_and_are_read_fast():
    folder = real_folder()
    start = time.process_time()
    corpus = read(folder)
    assert time.process_time() - start < 1
    assert [len(text) for text in (corpus.train, corpus.valid, corpus.test)] == [929_589, 73_760, 82_430]
    assert len(corpus.vocabulary) == 10_000
    assert corpus.train.unique().numel() == 10_000
    assert words(corpus, corpus.valid[:5]) == "consumers may want to move"
    assert len(Segments(corpus.train, batch=256)) == 103


# Segments


def test_segments_read_columns_side_by_side():
    segments = Segments(torch.arange(16), batch=2, length=3)  # columns 0 .. 7 and 8 .. 15
    assert len(segments) == 2
    tokens, targets = segments.at(0)
    assert tokens.tolist() == [[0, 8], [1, 9], [2, 10]]
    assert targets.tolist() == [[1, 9], [2, 10], [3, 11]]
    assert segments.at(1)[0].tolist() == [[3, 11], [4, 12], [5, 13]]


def test_what_fills_no_column_and_no_segment_is_dropped():
    segments = Segments(torch.arange(2 * 9 + 1), batch=2, length=3)  # 8 targets a column: 3, 3 and 2
    assert len(segments) == 2
    assert all(segments.at(step)[0].shape == (3, 2) for step in range(4))


def test_steps_count_across_epochs_in_any_order():
    segments = Segments(torch.arange(16), batch=2, length=3)
    assert [segments.starts_epoch(step) for step in range(5)] == [True, False, True, False, True]
    for late, early in [(5, 1), (4, 0), (2, 0)]:
        assert all(a.equal(b) for a, b in zip(segments.at(late), segments.at(early), strict=True))


def test_the_shortest_text_is_one_segment_and_its_last_target():
    assert len(Segments(torch.arange(8), batch=2, length=3)) == 1
    with pytest.raises(
        ValueError, match=r"7 tokens has 3 in each of 2 columns, but a segment takes 3 and one more"
    ):
        Segments(torch.arange(7), batch=2, length=3)


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match=r"text must be int64 \[tokens\].*float32 \[9\]"):
        Segments(torch.zeros(9), batch=2)
    with pytest.raises(ValueError, match=r"batch must be at least 1, got 0"):
        Segments(torch.arange(9), batch=0)
    with pytest.raises(ValueError, match=r"length must be at least 1, got 0"):
        perplexity(Uniform(3), torch.arange(9), length=0)
    with pytest.raises(ValueError, match=r"step counts segments from 0 across epochs, got -1"):
        Segments(torch.arange(16), batch=2, length=3).at(-1)


# Perplexity


class Uniform(nn.Module):
    """Every word is as likely as any other."""

    def __init__(self, vocabulary):
        super().__init__()
        self.vocabulary = vocabulary

    def forward(self, tokens, hidden):
        return torch.zeros(*tokens.shape, self.vocabulary), hidden


class Counting(nn.Module):
    """Knows the text 0, 1, 2, ... only, and remembers what it was asked."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def forward(self, tokens, hidden):
        self.asked += tokens.flatten().tolist()
        return 100.0 * F.one_hot(tokens + 1, 64), hidden


@pytest.fixture
def trained():
    """A space whose model prefers some words, and a text."""
    network = RecurrentCellNetwork(7, hidden=5).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(10)
        network.decoder.bias.copy_(torch.arange(7))
    return SearchSpace(network), torch.randint(7, (101,), generator=generator(0))


@pytest.mark.parametrize("batch", [1, 3, 10])
def test_a_uniform_model_has_the_vocabulary_as_its_perplexity(batch):
    assert perplexity(Uniform(50), torch.arange(48), batch=batch, length=5) == pytest.approx(50, rel=1e-6)


@pytest.mark.parametrize("tokens", [2, 5, 31, 32])
@pytest.mark.parametrize("batch", [1, 4, 10])
def test_every_token_but_the_first_is_predicted_from_the_one_before_it(tokens, batch):
    model = Counting()
    assert perplexity(model, torch.arange(tokens), batch=batch, length=3) == pytest.approx(1)
    assert set(model.asked) == set(range(tokens - 1))


def test_with_one_column_it_is_the_likelihood_of_the_whole_text(trained):
    space, text = trained
    plain = space.derive(next(space.architectures())).eval()
    logits, _ = plain(text[:-1, None])
    expected = math.exp(F.cross_entropy(logits[:, 0], text[1:]).item())
    assert perplexity(plain, text, batch=1) == pytest.approx(expected, rel=1e-10)


def test_it_does_not_depend_on_the_length_of_the_pieces(trained):
    space, text = trained
    plain = space.derive(next(space.architectures()))
    values = [perplexity(plain, text, batch=3, length=length) for length in (1, 7, 35, 1000)]
    assert values == pytest.approx([values[0]] * 4, rel=1e-10)


def test_the_parent_running_an_architecture_is_its_derived_module(trained):
    space, text = trained
    for architecture in list(space.architectures())[::3_000]:
        with space.running(architecture):
            parent = perplexity(space.model, text)
        assert parent == perplexity(space.derive(architecture), text)


def test_it_evaluates_without_dropout_and_leaves_every_mode_as_it_was(trained):
    space, text = trained
    model = space.model.train()
    model.dropout.eval()
    with space.running(next(space.architectures())):
        first, second = perplexity(model, text), perplexity(model, text)
    assert first == second
    assert model.training
    assert model.cell.training
    assert not model.dropout.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_modes_come_back_after_an_error_too(trained):
    space, text = trained
    with pytest.raises(RuntimeError, match="no architecture"):
        perplexity(space.model.train(), text)
    assert space.model.training


def test_a_model_that_has_diverged_gets_infinity():
    class Wrong(Uniform):
        def forward(self, tokens, hidden):
            return -1e5 * F.one_hot(tokens + 1, self.vocabulary), hidden

    assert perplexity(Wrong(50), torch.arange(40)) == math.inf


# The task


class Sums(torch.nn.Module):
    """Carries the sum of all tokens that it has read; that is its loss, too."""

    def loss(self, tokens, targets, hidden):
        carried = (0 if hidden is None else hidden) + tokens.float().sum()
        return carried, carried


@pytest.fixture
def task(tmp_path):
    for name in ("train", "valid", "test"):
        (tmp_path / f"{name}.txt").write_text("a b c d e f g\n" * 20)
    return build(batch=2, length=5, folder=tmp_path)


def test_a_task_carries_the_hidden_state_of_every_stream_from_segment_to_segment(task):
    model, sizes = Sums(), [tokens.sum().item() for tokens, *_ in task.training]
    seen = [
        (task.loss(model, a).item(), task.loss(model, b).item())
        for a, b in zip(task.training, task.validation, strict=True)
    ]
    assert seen == [(sum(sizes[: n + 1]),) * 2 for n in range(len(sizes))]
    assert task.loss(model, next(iter(task.training))).item() == sizes[0]  # a pass starts anew


def test_a_second_look_at_a_segment_starts_where_the_first_did(task):
    model, batches = Sums(), list(task.training)
    task.loss(model, batches[0])
    assert task.loss(model, batches[1]) == task.loss(model, batches[1])


def test_a_task_knows_how_many_tokens_its_loss_is_the_mean_of(task):
    assert task.examples == 2 * 5
    assert len(task.training) == len(task.validation) > 1


class StopAt(Callback):
    def __init__(self, turns):
        self.turns = turns

    def step(self, run, step):
        if run.search.weight_steps == self.turns and step.phase == "weights":
            raise StopSearch("enough for now")


@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_search_that_is_resumed_in_the_middle_of_a_pass_reads_on_with_its_states(task, tmp_path, device):
    def run(**options):
        torch.manual_seed(0)
        search = Search(RecurrentCellNetwork(vocabulary=10, hidden=4, dropout=0.0))
        search.run(replace(task, loss=CarriedLoss()), epochs=1, device=device, progress=False, **options)
        return search.model.state_dict()

    whole = run()
    run(folder=tmp_path / "run", callbacks=StopAt(len(task.training) // 2))
    resumed = run(folder=tmp_path / "run", resume=True)
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)


def test_states_of_something_else_are_refused():
    with pytest.raises(ValueError, match=r"states of 'theta' should be a segment's number and two states"):
        CarriedLoss().restore({"theta": [1, None]})
