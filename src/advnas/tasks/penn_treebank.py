"""Penn Treebank as a language model reads it: a vocabulary, three long texts, segments of them, perplexity."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from advnas.modes import evaluating
from advnas.task import Task
from advnas.tasks.data_folder import data_folder

FILES = ("train.txt", "valid.txt", "test.txt")
END_OF_LINE, UNKNOWN = "<eos>", "<unk>"
_NO_TARGET = -100
_DIVERGED = 700.0  # nats per token; math.exp of a little more fails, and that of nan is no better


@dataclass(frozen=True, eq=False)
class Corpus:
    """A vocabulary and three texts: int64 [tokens] each, numbers of words in the vocabulary.

    vocabulary: the words of the training text, in the order in which they first appear there.
    """

    vocabulary: tuple[str, ...]
    train: Tensor
    valid: Tensor
    test: Tensor


def build(*, tokens: int | None = None, batch: int = 64, length: int = 35, folder: Path | None = None) -> Task:
    """Build the task: the training text for weights and theta alike, as in the paper, the test text to judge by.

    Args:
        tokens: how much of the training text is used; None: all of it.
        batch: how many columns of the text are read side by side.
        length: of the segments that are backpropagated through.
        folder: of the data; see `data_folder`.

    Returns:
        The task. Its loss carries the hidden state of a model from one segment to the next.
    """
    place = data_folder(folder)
    training, test = (
        segments(place, tokens, batch, length),
        Segments(read_once(place).test, batch=10, length=length),
    )
    streams = (Pass(text, name) for name, text in (("weights", training), ("theta", training), ("test", test)))
    weights, theta, judged = streams
    return Task(weights, theta, CarriedLoss(), test=judged, examples=batch * length)


@dataclass(frozen=True)
class Pass:
    """One pass over a text: (tokens, targets, the number of the segment, the name of the stream)."""

    segments: "Segments"
    stream: str

    def __len__(self) -> int:
        return len(self.segments)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, int, str]]:
        for number in range(len(self.segments)):
            yield *self.segments.at(number), number, self.stream


class CarriedLoss:
    """The loss of a segment, read with the state in which the segment before it left the model.

    Every stream has a state of its own. Further passes over one segment start where its first pass started.
    """

    def __init__(self) -> None:
        self._carried: dict[str, tuple[int, Tensor | None, Tensor]] = {}

    def __call__(self, model: nn.Module, batch: tuple[Tensor, Tensor, int, str]) -> Tensor:
        """Return the loss of a model on a minibatch of a `Pass`."""
        tokens, targets, number, stream = batch
        last, before, after = self._carried.get(stream, (-1, None, None))
        hidden = None if number == 0 else before if number == last else after
        if hidden is not None:
            hidden = hidden.to(tokens.device)  # a checkpoint gives it on the CPU
        loss, following = model.loss(tokens, targets, hidden)  # type: ignore[operator]
        if number != last or number == 0:
            self._carried[stream] = number, hidden, following.detach()
        return loss  # type: ignore[no-any-return]

    def state(self) -> dict[str, Any]:
        """The states, so that a search that was stopped can go on; see `advnas.search.data.Remembers`."""
        return {stream: list(carried) for stream, carried in self._carried.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on with these states."""
        for stream, carried in state.items():
            if [type(one) for one in carried] not in ([int, type(None), Tensor], [int, Tensor, Tensor]):
                raise ValueError(
                    f"the hidden states of {stream!r} should be a segment's number and two states, not {carried}"
                )
        self._carried = {stream: (number, before, after) for stream, (number, before, after) in state.items()}


@lru_cache(maxsize=1)
def read_once(folder: Path) -> Corpus:
    """Read the texts, and keep them for the next call."""
    return read(folder)


@lru_cache(maxsize=1)
def segments(folder: Path, tokens: int | None, batch: int, length: int) -> "Segments":
    """Cut the training text into segments, and keep them for the next call."""
    return Segments(read_once(folder).train[:tokens], batch=batch, length=length)


def read(folder: Path) -> Corpus:
    """The texts in `ptb` of a data folder, or in a folder that has train.txt, valid.txt and test.txt itself.

    Words stand between white space, and every line ends with <eos>. A word that the training text does not have
    becomes <unk>, if that one is there.
    """
    train_path, *other_paths = _find(folder)
    words = _words(train_path)
    numbers = {word: number for number, word in enumerate(dict.fromkeys(words))}
    valid, test = (_encode(_words(path), numbers, path) for path in other_paths)
    return Corpus(tuple(numbers), _encode(words, numbers, train_path), valid, test)


def _find(folder: Path) -> list[Path]:
    places = (folder / "ptb", folder)
    for place in places:
        if all((place / name).is_file() for name in FILES):
            return [place / name for name in FILES]
    looked = "\n".join(f"  {place / name}" for place in places for name in FILES if not (place / name).is_file())
    raise FileNotFoundError(
        f"No Penn Treebank in {folder}. Put {', '.join(FILES)} into {places[0]}, or name the folder that has "
        f"them.\nMissing are\n{looked}"
    )


def _words(path: Path) -> list[str]:
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 text (byte {error.start:,}: {error.reason}). Is it still compressed?"
        ) from error
    if not text.strip():
        raise ValueError(f"{path} is empty. Put the text there, one sentence per line.")
    if not text.endswith("\n"):
        text += "\n"
    return text.replace("\n", f" {END_OF_LINE} ").split()


def _encode(words: list[str], numbers: Mapping[str, int], path: Path) -> Tensor:
    unknown = numbers.get(UNKNOWN, -1)
    text = np.fromiter((numbers.get(word, unknown) for word in words), np.int64, len(words))
    if text.min() < 0:
        place = int(text.argmin())
        line = words[:place].count(END_OF_LINE) + 1
        raise ValueError(
            f"{path} has {words[place]!r} in line {line}, which the training text does not have, nor has that an "
            f"{UNKNOWN} to stand for it. Replace the word, or rare words of the training text, by {UNKNOWN}."
        )
    return torch.from_numpy(text)


class Segments:
    """Pieces of a long text for truncated backpropagation, as a pure function of the step.

    The text is cut into `batch` columns of equal length that are read side by side, `length` tokens per step, so
    that every segment goes on where the one before it ended. Dropped are the tokens that do not fill the columns
    and, in every epoch, a last segment that is shorter than the others: all steps cost and weigh the same.

    text: int64 [tokens].
    """

    def __init__(self, text: Tensor, *, batch: int, length: int = 35) -> None:
        _check(text, batch, length)
        rows = len(text) // batch
        if rows <= length:
            raise ValueError(
                f"A text of {len(text):,} tokens has {rows} in each of {batch} columns, but a segment takes "
                f"{length} and one more as the last target. Give a smaller batch or length."
            )
        self._columns = text[: rows * batch].view(batch, rows).t().contiguous()
        self._length = length

    def __len__(self) -> int:
        """Segments per epoch."""
        return (len(self._columns) - 1) // self._length

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """Segment number `step`, counted from 0 across epochs: tokens and targets, each int64 [length, batch].

        The target of a token is the token that follows it.
        """
        start = self._place(step) * self._length
        rows = self._columns[start : start + self._length + 1]
        return rows[:-1], rows[1:]

    def starts_epoch(self, step: int) -> bool:
        """Whether this segment goes on from no other, so that the hidden state must be zeros."""
        return self._place(step) == 0

    def _place(self, step: int) -> int:
        if step < 0:
            raise ValueError(f"step counts segments from 0 across epochs, got {step}.")
        return step % len(self)


def perplexity(model: nn.Module, text: Tensor, *, batch: int = 10, length: int = 35) -> float:
    """exp of the mean negative log likelihood of every token of the text but the first, which has no context.

    The text is cut into `batch` columns, each of which starts with an empty state and carries it to its end.
    `length` limits memory and nothing else. A model that has diverged, to nan even, gets infinity.

    model: model(tokens int64 [time, batch], hidden or None) -> (logits [time, batch, vocabulary], hidden), such
        as a RecurrentCellNetwork inside `space.running(architecture)`, or a module derived from one. It is run
        in eval mode.
    text: int64 [tokens].
    """
    _check(text, batch, length)
    tokens, targets = _columns(text[:-1], batch, padding=0), _columns(text[1:], batch, padding=_NO_TARGET)
    total, hidden = 0.0, None
    with torch.no_grad(), evaluating(model):
        for piece, wanted in zip(torch.split(tokens, length), torch.split(targets, length), strict=True):
            logits, hidden = model(piece, hidden)
            loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=_NO_TARGET, reduction="sum")
            total += loss.item()
    mean = total / (len(text) - 1)
    return math.exp(mean) if mean < _DIVERGED else math.inf


def _columns(text: Tensor, batch: int, *, padding: int) -> Tensor:
    """[tokens] to [rows, batch], one column after the other, filled up at the end."""
    rows = -(-len(text) // batch)
    return F.pad(text, (0, rows * batch - len(text)), value=padding).view(batch, rows).t().contiguous()


def _check(text: Tensor, batch: int, length: int) -> None:
    if text.dim() != 1 or text.dtype != torch.int64 or len(text) < 2:
        raise ValueError(
            f"text must be int64 [tokens] and at least two, got {text.dtype} {list(text.shape)}. Take for example "
            "read(folder).train."
        )
    for name, value in {"batch": batch, "length": length}.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}.")
