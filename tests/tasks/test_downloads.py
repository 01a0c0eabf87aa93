import gzip
import hashlib
import json
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from advnas.tasks import cifar10, downloads
from advnas.tasks.downloads import SOURCES, Source, download, get, status

CONTENT = bytes(range(256)) * 4_000
HALF = len(CONTENT) // 2
MD5 = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()


@pytest.fixture(autouse=True)
def _nobody_waits(monkeypatch):
    monkeypatch.setattr(downloads, "_PAUSES", (0.0, 0.0, 0.0))
    monkeypatch.setenv("no_proxy", "127.0.0.1")


class Server(BaseHTTPRequestHandler):
    """Serves CONTENT. `server.habits` says how well, `server.requested` keeps the Range of every request."""

    def do_GET(self):
        habits, number = self.server.habits, len(self.server.requested)
        asked = self.headers["Range"]
        self.server.requested.append(asked)
        if failures := habits.get("failures", [])[number:]:
            self.send_error(failures[0])
            return
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and habits.get("ranges", True) else 0
        if start >= len(CONTENT):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            first = start + habits.get("off_by", 0)
            self.send_header("Content-Range", f"bytes {first}-{len(CONTENT) - 1}/{len(CONTENT)}")
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        cut = HALF if number < habits.get("cuts", 0) else len(CONTENT)
        self.wfile.write(CONTENT[start:cut])

    def log_message(self, *args):
        """Nothing: a test speaks when it fails."""


@contextmanager
def serving(**habits):
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        server.habits, server.requested = habits, []
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        server.url = f"http://127.0.0.1:{server.server_port}/data.bin"
        yield server
        server.shutdown()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "data.bin"


def part_of(path, content=None):
    part = path.with_name("data.bin.part")
    if content is not None:
        part.parent.mkdir()
        part.write_bytes(content)
    return part


def arrived_alone(path):
    return path.read_bytes() == CONTENT and list(path.parent.iterdir()) == [path]


def test_a_file_arrives_whole_and_tells_of_its_progress(path):
    progress = []
    with serving() as server:
        download(server.url, path, md5=MD5, on_progress=lambda done, total: progress.append((done, total)))
    assert arrived_alone(path)
    assert server.requested == [None]
    assert progress == sorted(progress)
    assert progress[-1] == (len(CONTENT), len(CONTENT))


def test_a_download_goes_on_where_an_earlier_one_stopped(path):
    part_of(path, CONTENT[:HALF])
    progress = []
    with serving() as server:
        download(server.url, path, md5=MD5, on_progress=lambda done, total: progress.append((done, total)))
    assert arrived_alone(path)
    assert server.requested == [f"bytes={HALF}-"]
    assert progress[0][0] > HALF
    assert progress[-1] == (len(CONTENT), len(CONTENT))


def test_a_server_without_ranges_means_to_start_anew(path):
    part_of(path, CONTENT[:HALF])
    with serving(ranges=False) as server:
        download(server.url, path, md5=MD5)
    assert arrived_alone(path)


@pytest.mark.parametrize("ranges", [True, False])
def test_a_connection_cut_in_the_middle_is_taken_up_again(path, ranges):
    with serving(cuts=1, ranges=ranges) as server:
        download(server.url, path, md5=MD5)
    assert arrived_alone(path)
    assert server.requested == [None, f"bytes={HALF}-"]


def test_a_part_longer_than_the_file_is_thrown_away(path):
    part_of(path, CONTENT + b"more")
    with serving() as server:
        download(server.url, path, md5=MD5)
    assert arrived_alone(path)
    assert server.requested == [f"bytes={len(CONTENT) + 4}-", None]


def test_another_range_than_the_one_asked_for_is_thrown_away(path):
    part_of(path, CONTENT[:HALF])
    with serving(off_by=1) as server:
        download(server.url, path, md5=MD5)
    assert arrived_alone(path)
    assert server.requested == [f"bytes={HALF}-", None]


def test_a_part_that_is_whole_already_is_not_fetched_again(path):
    part_of(path, CONTENT)
    with serving() as server:
        download(server.url, path, md5=MD5)
    assert arrived_alone(path)
    assert server.requested == []


def test_a_server_in_trouble_gets_further_attempts(path):
    with serving(failures=[503, 503]) as server:
        download(server.url, path, md5=MD5)
    assert arrived_alone(path)
    assert len(server.requested) == 3


def test_after_a_few_drops_the_message_says_what_to_do_and_the_part_stays(path):
    with (
        serving(cuts=99, ranges=False) as server,
        pytest.raises(OSError, match=rf"cut after {HALF:,} of .* kept; or fetch .* {path}"),
    ):
        download(server.url, path, md5=MD5)
    assert len(server.requested) == 4
    assert not path.exists()
    assert part_of(path).read_bytes() == CONTENT[:HALF]


def test_a_wrong_hash_leaves_nothing_behind(path):
    with serving() as server, pytest.raises(ValueError, match=rf"must be {'0' * 32}, and is {MD5}"):
        download(server.url, path, md5="0" * 32)
    assert list(path.parent.iterdir()) == []


def test_a_wrong_hash_leaves_an_older_file_as_it_was(path):
    path.parent.mkdir()
    path.write_text("older")
    with serving() as server, pytest.raises(ValueError, match="Nothing of it is kept"):
        download(server.url, path, md5="0" * 32)
    assert path.read_text() == "older"


def test_what_is_not_found_is_not_asked_for_again(path):
    with serving(failures=[404]) as server, pytest.raises(OSError, match=rf"{server.url}: .*404.* {path}"):
        download(server.url, path, md5=MD5)
    assert len(server.requested) == 1
    assert not path.exists()


def test_offline_the_message_names_the_address_and_the_place_for_the_file(path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, but nobody listens
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/data.bin"
        with pytest.raises(OSError, match=rf"Cannot download {url}: .*by other means and put it at {path}"):
            download(url, path, md5=MD5)


def test_get_fetches_what_is_missing_and_nothing_that_is_there(tmp_path, monkeypatch):
    monkeypatch.setitem(cifar10.MD5, cifar10.ARCHIVE, MD5)
    expected = tmp_path / "cifar10" / cifar10.ARCHIVE
    with serving() as server:
        monkeypatch.setitem(SOURCES, "cifar10", Source(server.url, f"cifar10/{cifar10.ARCHIVE}", MD5))
        assert [get("cifar10", tmp_path) for _ in range(2)] == [expected, expected]
    assert expected.read_bytes() == CONTENT
    assert len(server.requested) == 1


def test_get_does_not_touch_a_damaged_file(tmp_path):
    (tmp_path / cifar10.ARCHIVE).write_text("not an archive")
    with pytest.raises(ValueError, match="Delete it"):
        get("cifar10", tmp_path)
    assert (tmp_path / cifar10.ARCHIVE).read_text() == "not an archive"


def test_get_says_what_to_put_where_when_there_is_nothing_to_fetch(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"into {tmp_path / 'ptb'}"):
        get("ptb", tmp_path)


@pytest.mark.parametrize(("name", "hint"), [("cifar-10", "Did you mean 'cifar10'"), ("x", "Known are cifar10,")])
def test_an_unknown_dataset_is_refused_with_a_hint(tmp_path, name, hint):
    with pytest.raises(ValueError, match=hint):
        get(name, tmp_path)


def test_the_official_address_goes_with_the_official_hash():
    assert SOURCES["cifar10"].md5 == "c32a1d4ab5d03f1284b67883e8d87530"
    assert SOURCES["cifar10"].url.endswith(Path(SOURCES["cifar10"].file).name)


def states(folder):
    return {name: state for name, state, _ in status(folder)}


def table(rows):
    return "arch,cifar10_test\n" + "|nor_conv_3x3~0|,93.76\n" * rows


def test_in_an_empty_folder_everything_is_missing_and_every_row_says_what_to_do(tmp_path):
    rows = status(tmp_path)
    assert [row.name for row in rows] == ["cifar10", "cifar-split", "nasbench201", "nasbench_macro", "ptb"]
    assert {row.state for row in rows} == {"missing"}
    assert all(str(tmp_path) in row.detail and "\n" not in row.detail for row in rows)


def test_what_is_whole_is_present_with_its_place(tmp_path, monkeypatch):
    monkeypatch.setattr(downloads, "_PENN_TREEBANK_TOKENS", {"train.txt": 7, "valid.txt": 7, "test.txt": 7})
    monkeypatch.setitem(cifar10.MD5, cifar10.ARCHIVE, MD5)
    (tmp_path / cifar10.ARCHIVE).write_bytes(CONTENT)
    halves = {"train": list(range(25_000)), "valid": list(range(25_000, 50_000))}
    (tmp_path / cifar10.SPLIT).write_text(json.dumps(halves))
    (tmp_path / "nasbench201.csv.gz").write_bytes(gzip.compress(table(15_625).encode(), 1))
    (tmp_path / "nasbench_macro.csv.gz").write_bytes(gzip.compress(table(6_561).encode(), 1))
    (tmp_path / "ptb").mkdir()
    for name in ("train", "valid", "test"):
        (tmp_path / "ptb" / f"{name}.txt").write_text("no it was n't\nblack\n")
    assert {row.state for row in status(tmp_path)} == {"present"}
    places = [cifar10.ARCHIVE, cifar10.SPLIT, "nasbench201.csv.gz", "nasbench_macro.csv.gz", "ptb"]
    assert [row.detail for row in status(tmp_path)] == [str(tmp_path / place) for place in places]


def test_what_is_not_whole_is_damaged_with_the_reason(tmp_path):
    (tmp_path / cifar10.ARCHIVE).write_bytes(CONTENT)
    (tmp_path / cifar10.SPLIT).write_text('{"train": [0, 1')
    (tmp_path / "nasbench201.csv.gz").write_bytes(gzip.compress(table(15_625).encode())[:-9])
    (tmp_path / "nasbench_macro.csv").write_text(table(6_560))
    (tmp_path / "ptb").mkdir()
    for name in ("train", "valid", "test"):
        (tmp_path / "ptb" / f"{name}.txt").write_text("no it was\n")
    reasons = [
        "MD5 must be",
        "exactly once",
        "cannot be read",
        "6,561 rows",
        "929,589 tokens, got 4",
    ]
    for (_, state, detail), reason in zip(status(tmp_path), reasons, strict=True):
        assert state == "damaged"
        assert reason in detail
        assert str(tmp_path) in detail


@pytest.mark.parametrize(
    ("text", "state"),
    [
        (table(15_625), "present"),
        (table(15_624), "damaged"),
        (table(15_625).rstrip("\n")[:-6], "damaged"),
        (table(15_625).removeprefix("arch,"), "damaged"),
        ("", "damaged"),
    ],
    ids=["whole", "a row less", "a torn row", "another header", "empty"],
)
def test_a_table_may_be_unpacked_and_must_be_whole(tmp_path, text, state):
    (tmp_path / "nasbench201.csv").write_text(text)
    assert states(tmp_path)["nasbench201"] == state


def test_a_missing_file_of_the_penn_treebank_is_named(tmp_path):
    (tmp_path / "ptb").mkdir()
    for name in ("train", "test"):
        (tmp_path / "ptb" / f"{name}.txt").write_text("no it was\n")
    ptb = next(row for row in status(tmp_path) if row.name == "ptb")
    assert ptb.state == "missing"
    assert "put valid.txt of" in ptb.detail
