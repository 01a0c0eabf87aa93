import hashlib
import json
import os
import tarfile
from pathlib import Path

import pytest
import torch

from advnas.randomness import generator
from advnas.tasks import cifar10
from advnas.tasks.cifar10 import Images, check, halves, read, read_split

NAMES = [*cifar10.FILES["train"], *cifar10.FILES["test"]]
IMAGES_A_FILE = 4
PLACES = ["cifar-10-batches-bin", "cifar10/cifar-10-batches-bin", "cifar10", "."]


def folders_with_real_data():
    named = [Path(os.environ["ADVNAS_DATA"])] if "ADVNAS_DATA" in os.environ else []
    beside = Path(__file__).parents[3]
    return [*named, beside / "data" / "cifar10", beside / "shared" / "data"]


def from_real_data(look, what):
    """What `look` finds in the first folder that has it; the test is skipped where none has."""
    for folder in folders_with_real_data():
        try:
            return look(folder)
        except FileNotFoundError:
            continue
    return pytest.skip(f"needs {what}: set ADVNAS_DATA to a folder that has it")


def md5(content):
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


@pytest.fixture
def small(monkeypatch):
    """A CIFAR-10 of 4 images a file, and its hashes in place of the official ones: pixels, labels, contents."""
    count = len(NAMES) * IMAGES_A_FILE
    pixels = torch.randint(256, (count, 3, 32, 32), generator=generator(1)).to(torch.uint8)
    labels = torch.randint(10, (count,), generator=generator(2))
    records = torch.cat([labels.to(torch.uint8)[:, None], pixels.flatten(1)], dim=1).chunk(len(NAMES))
    contents = {name: block.numpy().tobytes() for name, block in zip(NAMES, records, strict=True)}
    monkeypatch.setattr(cifar10, "MD5", {name: md5(content) for name, content in contents.items()})
    return pixels, labels, contents


def unpack(contents, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)


def pack(contents, folder):
    """The archive, with its files in another order than they are read in, as in the official one."""
    unpack(contents, folder / "before")
    folder.mkdir(exist_ok=True)
    with tarfile.open(folder / cifar10.ARCHIVE, "w:gz") as archive:
        for name in reversed(NAMES):
            archive.add(folder / "before" / name, f"cifar-10-batches-bin/{name}")
            (folder / "before" / name).unlink()
    cifar10.MD5[cifar10.ARCHIVE] = md5((folder / cifar10.ARCHIVE).read_bytes())


def is_small(folder, pixels, labels):
    train, test = read(folder, "train"), read(folder, "test")
    whole = Images(torch.cat([train.pixels, test.pixels]), torch.cat([train.labels, test.labels]))
    sizes = [len(train), len(test)] == [5 * IMAGES_A_FILE, IMAGES_A_FILE]
    return sizes and torch.equal(whole.pixels, pixels) and torch.equal(whole.labels, labels)


@pytest.mark.parametrize("place", PLACES)
def test_the_binary_files_may_lie_in_any_of_the_usual_places(tmp_path, small, place):
    pixels, labels, contents = small
    unpack(contents, tmp_path / place)
    assert is_small(tmp_path, pixels, labels)
    assert check(tmp_path) == tmp_path / place


@pytest.mark.parametrize("place", ["cifar10", "."])
def test_the_archive_is_as_good_as_its_files(tmp_path, small, place):
    pixels, labels, contents = small
    pack(contents, tmp_path / place)
    assert is_small(tmp_path, pixels, labels)
    assert check(tmp_path) == tmp_path / place / cifar10.ARCHIVE


@pytest.mark.parametrize("harm", [lambda content: content[:-100], lambda content: content[:-1] + b"!"])
@pytest.mark.parametrize("name", ["data_batch_3.bin", cifar10.ARCHIVE])
def test_a_truncated_or_altered_file_is_refused_with_both_hashes(tmp_path, small, name, harm):
    if name == cifar10.ARCHIVE:
        pack(small[2], tmp_path)
    else:
        unpack(small[2], tmp_path)
    path = tmp_path / name
    content = harm(path.read_bytes())
    path.write_bytes(content)
    for look in (lambda: read(tmp_path, "train"), lambda: check(tmp_path)):
        with pytest.raises(ValueError, match="advnas data get cifar10") as refusal:
            look()
        assert all(word in str(refusal.value) for word in (str(path), cifar10.MD5[name], md5(content)))


def test_without_data_the_message_says_where_they_were_looked_for_and_what_to_write(tmp_path):
    with pytest.raises(FileNotFoundError, match="advnas data get cifar10") as missing:
        read(tmp_path, "train")
    message = str(missing.value)
    assert "ADVNAS_DATA" in message
    assert "--data-folder" in message
    assert all(str(tmp_path / place / "data_batch_1.bin") in message for place in PLACES)
    assert str(tmp_path / "cifar10" / cifar10.ARCHIVE) in message


def test_a_missing_file_of_several_is_named(tmp_path, small):
    unpack(small[2], tmp_path)
    (tmp_path / "data_batch_2.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"lacks data_batch_2\.bin\. "):
        read(tmp_path, "train")
    assert len(read(tmp_path, "test")) == IMAGES_A_FILE


def test_another_part_is_refused(tmp_path):
    with pytest.raises(ValueError, match="'train' or 'test', got 'valid'"):
        read(tmp_path, "valid")


@pytest.mark.parametrize(
    ("pixels", "labels", "fault"),
    [
        (torch.zeros(2, 3, 32, 32), torch.zeros(2, dtype=torch.int64), "pixels must be uint8"),
        (torch.zeros(2, 32, 32, 3, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64), r"\[2, 32, 32, 3\]"),
        (torch.zeros(2, 3, 32, 32, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64), "one per image"),
        (torch.zeros(2, 3, 32, 32, dtype=torch.uint8), torch.zeros(2), "labels must be int64"),
    ],
)
def test_images_have_one_layout(pixels, labels, fault):
    with pytest.raises(ValueError, match=fault):
        Images(pixels, labels)


def are_halves(train, valid):
    whole = torch.equal(torch.cat([train, valid]).sort().values, torch.arange(50_000))
    return whole and len(train) == len(valid) and train.dtype == torch.int64


def test_a_random_split_depends_on_nothing_but_its_seed(tmp_path):
    by_default, again, another = halves(tmp_path), halves(tmp_path, seed=0), halves(tmp_path, seed=1)
    assert are_halves(*by_default)
    assert are_halves(*another)
    assert all(torch.equal(half, same) for half, same in zip(by_default, again, strict=True))
    assert not torch.equal(by_default[0], another[0])


@pytest.mark.parametrize("place", ["cifar10", "."])
def test_the_split_file_is_used_unless_a_seed_is_given(tmp_path, monkeypatch, place):
    (tmp_path / place).mkdir(exist_ok=True)
    even_and_odd = {"train": list(range(0, 50_000, 2)), "valid": list(range(1, 50_000, 2))}
    (tmp_path / place / cifar10.SPLIT).write_text(json.dumps(even_and_odd))
    monkeypatch.setenv("ADVNAS_DATA", str(tmp_path))
    for train, valid in (halves(tmp_path), halves()):
        assert train.tolist() == even_and_odd["train"]
        assert valid.tolist() == even_and_odd["valid"]
    assert halves(tmp_path, seed=0)[0].tolist() != even_and_odd["train"]


LOW, HIGH = list(range(25_000)), list(range(25_000, 50_000))


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        json.dumps({"train": LOW}),
        json.dumps({"train": LOW, "valid": "all the others"}),
        json.dumps({"train": LOW, "valid": LOW}),
        json.dumps({"train": LOW, "valid": [*HIGH[:-1], 50_000]}),
        json.dumps({"train": LOW, "valid": HIGH[:-1]}),
        json.dumps({"train": [*LOW, 25_000], "valid": HIGH[1:]}),
        json.dumps({"train": LOW, "valid": [*HIGH[:-1], 49_999.0]}),
        json.dumps({"train": LOW, "valid": list(map(str, HIGH))}),
    ],
    ids=lambda text: text[:10] + "..." + text[-20:],
)
def test_a_split_file_that_is_none_is_refused(tmp_path, text):
    (tmp_path / cifar10.SPLIT).write_text(text)
    with pytest.raises(ValueError, match=r"must be .* exactly once .* or delete it"):
        halves(tmp_path)


def test_the_real_images_are_read_in_the_official_order():
    test = from_real_data(lambda folder: read(folder, "test"), "CIFAR-10")
    assert test.pixels.shape == (10_000, 3, 32, 32)
    assert test.labels.bincount().tolist() == [1_000] * 10
    assert test.labels[:5].tolist() == [3, 8, 8, 0, 6]  # cat, ship, ship, airplane, frog


def test_the_real_split_is_that_of_nasbench201():
    train, valid = from_real_data(lambda folder: read_split(folder / cifar10.SPLIT), cifar10.SPLIT)
    assert are_halves(train, valid)
    assert train[:5].tolist() == [0, 5, 7, 11, 13]


# The task


@pytest.fixture
def made_up(monkeypatch):
    pixels = torch.randint(256, (1200, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    known = Images(pixels, torch.arange(1200) % 10)
    monkeypatch.setattr(cifar10, "read_once", lambda folder, part: known)
    monkeypatch.setattr(cifar10, "halves", lambda folder: (torch.arange(600), torch.arange(600, 1200)))
    return known


def test_the_task_augments_what_is_learnt_from_and_not_the_test_images(made_up):
    task = cifar10.build(images=64, batch=32)
    assert (len(task.training), len(task.validation), len(task.test), task.examples) == (2, 2, 3, 32)
    x, y = next(iter(task.training))
    assert (x.shape, y.shape) == ((32, 3, 32, 32), (32,))
    first, second = (next(iter(task.test))[0] for _ in range(2))
    assert torch.equal(first, second)
    assert sum(len(labels) for _, labels in task.test) == 1200


def test_weights_and_theta_share_no_image(made_up):
    training, validation = cifar10.parts(Path(), 600)
    assert not set(training.tolist()) & set(validation.tolist())
    with pytest.raises(ValueError, match="Each half of CIFAR-10 has 600 images, got images=601"):
        cifar10.parts(Path(), 601)
