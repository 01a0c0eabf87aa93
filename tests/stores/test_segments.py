"""What a checkpoint says of its segments, and what is in them, is checked before anything is changed."""

import copy
import hashlib
import json
import random
from functools import partial

import pytest
import torch
from torch import nn

from advnas import Choice, Search
from advnas import stores as weights
from advnas.records.checkpoints import DamagedCheckpoint

STORES = {"resident": weights.Resident, "host": weights.Host, "disk": partial(weights.Disk, 600_000)}
ADAM = partial(torch.optim.Adam, lr=0.1)
SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
NAME = "0.0 edge linear"


def search(store="disk", size=3, optimizer=SGD, dtype=torch.float32):
    torch.manual_seed(0)
    # The names are the same, whatever the size: a weight of [1, 3] could be broadcast into one of [3, 3].
    candidates = {name: nn.Linear(3, size, bias=False) for name in ("linear", "other")}
    model = nn.Sequential(Choice(candidates, name="edge"))
    made = Search(model.to(dtype), "darts", weights=STORES[store](), weight_optimizer=optimizer)
    for _ in range(2):
        made.weight_step(lambda model: model(torch.ones(2, 3, dtype=dtype)).square().sum())
    return made


@pytest.fixture
def saved(tmp_path):
    """A folder with one segment, and its manifest."""
    manifest = search().state(tmp_path)["weights"]["units"]
    return tmp_path, copy.deepcopy(manifest)


def tensors(made):
    optimizer = made.state()["weights"]["optimizer"]["state"].values()
    return [
        tensor.clone()
        for values in (made.model.state_dict(), *optimizer)
        for tensor in values.values()
        if isinstance(tensor, torch.Tensor)
    ]


def assert_refused(made, manifest, folder, error, message):
    before = tensors(made)
    with pytest.raises(error, match=message) as raised:
        made.weights.store.check(manifest, folder)
    assert raised.type is error
    assert all(map(torch.equal, tensors(made), before))


def rewritten(folder, manifest, change):
    """A manifest whose first record was changed by somebody who also changed its checksum."""
    name, offset, length, _ = manifest[NAME]
    content = change((folder / name).read_bytes()[offset : offset + length])
    (folder / "segment-forged.bin").write_bytes(content)
    return manifest | {NAME: ["segment-forged.bin", 0, len(content), hashlib.sha256(content).hexdigest()]}


def with_header(change):
    """Changes the first layout of a record: [parameter, key, dtype, shape, stride]."""

    def rewrite(content):
        start = 8 + int.from_bytes(content[:8], "little")
        layouts = json.loads(content[8:start])
        header = json.dumps(change(layouts)).encode()
        return len(header).to_bytes(8, "little") + header + content[start:]

    return rewrite


@pytest.mark.parametrize("store", STORES)
def test_what_was_saved_is_accepted_and_loaded_by_every_store(saved, store):
    folder, manifest = saved
    made, expected = search(store), search()
    for _ in range(3):
        made.weight_step(lambda model: model(torch.ones(1, 3)).sum())
    made.weights.store.check(manifest, folder)
    made.weights.store.unpack(manifest, folder)
    assert torch.equal(made.model[0].candidates[0].weight, expected.model[0].candidates[0].weight)
    assert all(map(torch.equal, tensors(made), tensors(expected)))


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"size": 1}, r"of another network: 0\.candidates\.0\.weight is \[1, 3\], and should be \[3, 3\]"),
        ({"dtype": torch.float64}, r"weight is torch\.float64, and should be torch\.float32"),
    ],
)
def test_a_segment_of_another_model_is_refused_and_not_broadcast(tmp_path, store, other, message):
    manifest = search(**other).state(tmp_path)["weights"]["units"]
    assert_refused(search(store), manifest, tmp_path, ValueError, message)


def test_a_search_that_refuses_a_segment_is_as_it_was(tmp_path):
    made, state = search(), search(size=1).state(tmp_path)
    before = tensors(made)
    with pytest.raises(ValueError, match="of another network"):
        made.restore(state, tmp_path)
    assert all(map(torch.equal, tensors(made), before))


def shape(value):
    return lambda layouts: [[*layouts[0][:3], *value], *layouts[1:]]


@pytest.mark.parametrize(
    "change",
    [
        lambda content: b"",
        lambda content: content[:4],
        lambda content: b"\xff" * 8 + content[8:],
        lambda content: content + b"\0",
        lambda content: content[:-1],
        lambda content: content[:8] + b"[" * (len(content) - 8),
        with_header(lambda layouts: None),
        with_header(lambda layouts: {}),
        with_header(lambda layouts: [layouts[0], layouts[0]]),
        with_header(lambda layouts: [layouts[0][:4], *layouts[1:]]),
        with_header(lambda layouts: [[*layouts[0][:2], "load", *layouts[0][3:]], *layouts[1:]]),
        with_header(lambda layouts: [[*layouts[0][:2], ["float32"], *layouts[0][3:]], *layouts[1:]]),
        with_header(shape([[3, 3], [0, 0]])),
        with_header(shape([[3, 3], [3, 2**70]])),
        with_header(shape([[3, 3], [2**40, 1]])),
        with_header(shape([[2**40, 2**40], [2**40, 1]])),
        with_header(shape([[3, -3], [3, 1]])),
        with_header(shape([[3, 3.0], [3, 1]])),
        with_header(shape([[3, 3], [3]])),
        with_header(shape([None, None])),
    ],
)
def test_a_forged_record_is_refused(saved, change):
    folder, manifest = saved
    forged = rewritten(folder, manifest, change)
    with pytest.raises(ValueError, match=rf"is damaged: its header|{NAME}"):
        search().weights.store.check(forged, folder)


def test_optimizer_state_of_another_shape_is_refused(saved):
    """A fused step would read past the end of a tensor that is too short."""
    folder, manifest = saved
    record = with_header(lambda layouts: [layouts[0], [*layouts[1][:3], [9], [1]]])
    message = r"0\.candidates\.0\.weight momentum_buffer is \[9\], and should be \[3, 3\]"
    assert_refused(search(), rewritten(folder, manifest, record), folder, ValueError, message)


def test_a_parameter_without_values_or_of_another_name_is_refused(saved):
    folder, manifest = saved
    for name, key in (("0.candidates.0.weight", "momentum"), ("0.candidates.0.bias", "")):
        record = with_header(lambda layouts, name=name, key=key: [[name, key, *layouts[0][2:]], *layouts[1:]])
        forged = rewritten(folder, manifest, record)
        assert_refused(search(), forged, folder, ValueError, r"its parameters should be 0\.candidates\.0\.weight")


@pytest.mark.parametrize(
    "entry",
    [
        None,
        [],
        "text",
        ["segment.bin", 0, 8],
        ["../segment.bin", 0, 8, ""],
        ["/etc/hostname", 0, 8, ""],
        ["segment.bin", -1, 8, ""],
        ["segment.bin", 0, 7, ""],
        ["segment.bin", 0.0, 8, ""],
        ["segment.bin", True, 8, ""],
        ["segment.bin", 0, 8, None],
    ],
)
def test_an_entry_that_is_none_is_refused(saved, entry):
    folder, manifest = saved
    assert_refused(search(), manifest | {NAME: entry}, folder, ValueError, r"not \[file, offset, length, SHA-256\]")


def test_no_memory_is_set_aside_for_more_than_there_is(saved):
    folder, manifest = saved
    name, offset, _, checksum = manifest[NAME]
    for entry in ([name, offset, 2**60, checksum], [name, 2**60, 8, checksum]):
        assert_refused(
            search(), manifest | {NAME: entry}, folder, DamagedCheckpoint, r"the file has only \d+ bytes"
        )


@pytest.mark.parametrize("store", STORES)
def test_a_damaged_or_missing_segment_is_refused(saved, store):
    folder, manifest = saved
    made, path = search(store), folder / manifest[NAME][0]
    content, randomly = path.read_bytes(), random.Random(0)
    for _ in range(50):
        damaged = bytearray(content)
        damaged[randomly.randrange(len(content))] ^= 1 << randomly.randrange(8)
        path.write_bytes(damaged)
        assert_refused(made, manifest, folder, DamagedCheckpoint, r"SHA-256 is not the one")
    for size in (len(content) - 1, 8, 0):
        path.write_bytes(content[:size])
        assert_refused(made, manifest, folder, DamagedCheckpoint, r"the file has only")
    path.unlink()
    assert_refused(made, manifest, folder, DamagedCheckpoint, r"is missing")


def test_moments_of_another_shape_than_the_weights_are_saved_with_the_rest(tmp_path):
    """Factored moments are no candidates' tensors: they are small, and in the state itself."""
    optimizer = partial(torch.optim.Adafactor, lr=0.1)
    made = search(optimizer=optimizer)
    state = copy.deepcopy(made.state(tmp_path))
    assert {"row_var", "col_var"} <= state["weights"]["optimizer"]["state"][0].keys()
    resumed = search(optimizer=optimizer)
    resumed.weight_step(lambda model: model(torch.ones(1, 3)).sum())
    resumed.restore(state, tmp_path)
    assert all(map(torch.equal, tensors(resumed), tensors(made)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_weights_of_other_dtypes_are_saved_too(tmp_path, dtype):
    made, resumed = search(dtype=dtype), search(dtype=dtype)
    state = copy.deepcopy(made.state(tmp_path))
    resumed.weight_step(lambda model: model(torch.ones(1, 3, dtype=dtype)).sum())
    resumed.restore(state, tmp_path)
    assert all(map(torch.equal, tensors(resumed), tensors(made)))
