"""A small file takes little memory, whatever it says of itself; and it is refused by name."""

import bz2
import gzip
import io
import os
import pickle
import struct
import zipfile
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from advnas.export import load_plain
from advnas.records.bounds import load_torch_file, read_at_most
from advnas.records.checkpoints import load_state
from advnas.records.plain import plain
from advnas.tables import nasbench201, nasbench_macro
from advnas.tables.nasbench201_import import import_pth, read_nats_record
from advnas.tasks.downloads import status

LARGE = 1_600_000_000  # bytes
ALLOWED = 300_000_000


class Call:
    """Pickled as a call."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def zipped(pickled, method=zipfile.ZIP_STORED, more=b""):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr("a/data.pkl", pickled)
        archive.writestr("a/version", "3\n")
        archive.writestr("a/data/0", more)
    return file.getvalue()


def old(value):
    """As torch wrote before version 1.6."""
    file = io.BytesIO()
    torch.save(value, file, _use_new_zipfile_serialization=False)
    return file.getvalue()


MANY = b"\x80\x02}r" + struct.pack("<I", LARGE // 16) + b"."  # an empty dict, remembered as number 100,000,000
PICKLES = {
    "bytes of one number": pickle.dumps({"x": Call(bytearray, LARGE)}, 2),
    "a tensor of one number": b"\x80\x02}X\x01\x00\x00\x00xctorch\nFloatTensor\nJ"
    + struct.pack("<i", LARGE // 4)
    + b"\x85Rs.",
}
FILES = {name: zipped(content) for name, content in PICKLES.items()} | {
    "zeros, deflated": zipped(pickle.dumps({"x": 1}, 2), zipfile.ZIP_DEFLATED, bytes(LARGE // 4)),
    "a storage of one number": old({"x": torch.zeros(4)}).replace(
        pickle.dumps(4, 2)[2:-1] + b"Nt", struct.pack("<ci", b"J", LARGE // 4) + b"Nt"
    ),
}


def peak_of(work):
    """The bytes that a process has at most while it does something, beyond what it had before."""
    reading, writing = os.pipe()
    if not os.fork():
        Path("/proc/self/clear_refs").write_text("5")
        before = memory("VmSize")
        try:
            work()
            told = "taken"
        except ValueError as error:
            told = str(error)
        except BaseException as error:
            told = f"raised {error!r}"
        os.write(writing, f"{max(memory('VmPeak'), memory('VmSize')) - before}\n{told}".encode())
        os._exit(0)
    os.wait()
    os.close(writing)
    with open(reading, "rb") as file:  # noqa: PTH123
        size, _, told = file.read().decode().partition("\n")
    return int(size), told


def memory(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])


def assert_refused(work, path):
    size, told = peak_of(work)
    assert told.startswith(str(path.parent)), told[:300]
    assert size < ALLOWED


@pytest.mark.parametrize("name", FILES)
def test_a_checkpoint_that_claims_to_be_large_is_refused(tmp_path, name):
    path = tmp_path / "weights.pt"
    path.write_bytes(FILES[name])
    assert_refused(partial(load_state, path), path)
    assert_refused(partial(load_plain, nn.Linear(1, 1), tmp_path), path)
    assert_refused(partial(import_pth, path), path)


@pytest.mark.parametrize("content", [bytes(LARGE // 4), MANY, PICKLES["bytes of one number"]])
def test_a_record_of_nats_that_claims_to_be_large_is_refused(tmp_path, content):
    path = tmp_path / "000000.pickle.pbz2"
    path.write_bytes(bz2.compress(content))
    assert path.stat().st_size < 1000
    assert_refused(partial(read_nats_record, path), path)


@pytest.mark.parametrize("table", [nasbench201, nasbench_macro])
def test_a_table_that_unpacks_to_too_much_is_refused(tmp_path, table):
    path = tmp_path / f"{table.__name__.rpartition('.')[2]}.csv.gz"
    path.write_bytes(gzip.compress(bytes(LARGE // 4)))
    assert_refused(partial(table.load, path), path)
    size, _ = peak_of(partial(status, tmp_path))
    assert size < ALLOWED


def test_all_that_a_state_may_hold_is_read(tmp_path):
    state = plain(
        {
            "tensors": [
                torch.zeros(2, dtype=kind) for kind in (torch.float32, torch.bfloat16, torch.int64, torch.bool)
            ],
            "more": [nn.Parameter(torch.ones(2)), torch.ones(2).to_sparse(), torch.ones(2, device="meta")],
            "numbers": (1, 2.5, 3j, True, None, 2**80),
            "texts": {"a", b"bytes", "größer"},
            "kinds": [torch.float16, torch.device("cpu")],
            "module": nn.BatchNorm1d(2).state_dict(),
        },
        "",
    )
    torch.save(state, tmp_path / "state.pt")
    assert load_torch_file(tmp_path / "state.pt").keys() == state.keys()


def test_a_file_is_read_to_its_end_if_it_is_not_too_long():
    assert read_at_most(io.BytesIO(b"abc"), 3) == b"abc"
    with pytest.raises(ValueError, match="more than 2 bytes"):
        read_at_most(io.BytesIO(b"abc"), 2)
