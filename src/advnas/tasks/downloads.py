"""Where the data lie, what of it is there, and how to fetch it."""

import hashlib
import http.client
import ssl
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from advnas.arguments import nearest
from advnas.records.bounds import unpacked
from advnas.tasks import cifar10

OnProgress = Callable[[int, int | None], None]  # bytes that are here, and bytes of the whole where that is known

_CHUNK = 1 << 18
_TIMEOUT = 30.0
_PAUSES = (0.5, 1.0, 2.0)  # seconds before another attempt
_DROPPED = (URLError, ConnectionError, TimeoutError, http.client.HTTPException, ssl.SSLError)
_WORTH_ANOTHER_ATTEMPT = {408, 416, 429}  # of the answers that put the blame on us
_ROWS = {"nasbench201": 15_625, "nasbench_macro": 6_561}  # of the tables of known results
_LARGEST_TABLE = 2**26  # bytes, unpacked
_PENN_TREEBANK_TOKENS = {"train.txt": 929_589, "valid.txt": 73_760, "test.txt": 82_430}


@dataclass(frozen=True)
class Source:
    """A file to fetch: its address, its place in the data folder, and its hash."""

    url: str
    file: str
    md5: str


SOURCES = {
    "cifar10": Source(
        url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        file=f"cifar10/{cifar10.ARCHIVE}",
        md5=cifar10.MD5[cifar10.ARCHIVE],
    )
}


class Status(NamedTuple):
    """One dataset in a data folder. detail: where it is, or what is wrong."""

    name: str
    state: Literal["present", "missing", "damaged"]
    detail: str


def status(folder: Path) -> list[Status]:
    """What is there of every known dataset, checked in about a second."""
    return [_status_of(name, folder) for name in CHECKS]


def get(name: str, folder: Path, on_progress: OnProgress | None = None) -> Path:
    """Fetch a dataset into a data folder, unless it is there already; where it lies."""
    if name not in CHECKS:
        close = nearest(name, CHECKS)
        hint = f" Did you mean {close!r}?" if close else ""
        raise ValueError(f"There is no dataset {name!r}.{hint} Known are {', '.join(CHECKS)}.")
    try:
        return CHECKS[name](folder)
    except FileNotFoundError:
        if name not in SOURCES:
            raise  # the message says what to put where by hand
    source = SOURCES[name]
    path = folder / source.file
    download(source.url, path, md5=source.md5, on_progress=on_progress)
    return path


def download(url: str, path: Path, *, md5: str, on_progress: OnProgress | None = None) -> None:
    """Fetch a file into `path`, which appears only when it is whole and has the right hash.

    What has arrived waits in `path`.part, and the next attempt, or the next call, goes on from there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    if not (part.exists() and _md5_of(part) == md5):  # a process may have died just before the last line below
        _fetch_in_spite_of_drops(url, part, path, on_progress)
    found = _md5_of(part)
    if found != md5:
        size = part.stat().st_size
        part.unlink()
        raise ValueError(
            f"{url} sent something else than expected: its MD5 must be {md5}, and is {found} ({size:,} bytes). "
            f"Nothing of it is kept. Try again, or fetch the file by other means and put it at {path}."
        )
    part.replace(path)


def _fetch_in_spite_of_drops(url: str, part: Path, path: Path, on_progress: OnProgress | None) -> None:
    for pause in (*_PAUSES, None):
        try:
            _fetch(url, part, on_progress)
            return
        except _DROPPED as error:
            if pause is None or _is_final(error):
                raise OSError(
                    f"Cannot download {url}: {error}. Try again later, what has arrived is kept; or fetch the file "
                    f"by other means and put it at {path}."
                ) from error
        time.sleep(pause)


def _fetch(url: str, part: Path, on_progress: OnProgress | None) -> None:
    """Append to the part what it lacks; a server that does not serve ranges sends everything, to start anew."""
    start = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "advnas", **({"Range": f"bytes={start}-"} if start else {})}
    try:
        answer = urlopen(Request(url, headers=headers), timeout=_TIMEOUT)
    except HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            part.unlink(missing_ok=True)
        raise
    with answer:
        if answer.status != http.HTTPStatus.PARTIAL_CONTENT:
            start = 0
        elif not answer.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
            part.unlink(missing_ok=True)
            raise ConnectionError(f"asked for the bytes from {start}, got {answer.headers['Content-Range']}")
        length = answer.headers.get("Content-Length")
        _receive(answer, part, start, None if length is None else start + int(length), on_progress)


def _receive(
    answer: http.client.HTTPResponse, part: Path, start: int, total: int | None, on_progress: OnProgress | None
) -> None:
    done = start
    with part.open("ab" if start else "wb") as file:
        while chunk := answer.read(_CHUNK):
            file.write(chunk)
            done += len(chunk)
            if on_progress is not None:
                on_progress(done, total)
    if total is not None and done != total:  # http.client takes a dropped connection for the end
        raise ConnectionError(f"the connection was cut after {done:,} of {total:,} bytes")


def _is_final(error: Exception) -> bool:
    return isinstance(error, HTTPError) and error.code < 500 and error.code not in _WORTH_ANOTHER_ATTEMPT


def _md5_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def _status_of(name: str, folder: Path) -> Status:
    try:
        return Status(name, "present", str(CHECKS[name](folder)))
    except FileNotFoundError as error:
        return Status(name, "missing", str(error).splitlines()[0])
    except (OSError, EOFError, ValueError, zlib.error) as error:
        return Status(name, "damaged", str(error).splitlines()[0])


def _check_cifar_split(folder: Path) -> Path:
    path = cifar10.find_split(folder)
    if path is None:
        raise FileNotFoundError(
            f"No {cifar10.SPLIT} in {folder}: CIFAR-10 will be halved at random. Put NAS-Bench-201's split there."
        )
    cifar10.read_split(path)
    return path


def _check_table(name: str, folder: Path) -> Path:
    places = [folder / f"{name}.csv.gz", folder / f"{name}.csv"]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise FileNotFoundError(f"No table {name}. Put it at {places[0]} or {places[1]}.")
    try:
        header, *rows = unpacked(path, _LARGEST_TABLE).decode().splitlines()
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise ValueError(f"{path} cannot be read ({error}). Replace it.") from error
    whole = [row for row in rows if row.count(",") == header.count(",")]
    if not header.startswith("arch,") or not len(rows) == len(whole) == _ROWS[name]:
        raise ValueError(
            f"{path} must have a first line 'arch,...' and {_ROWS[name]:,} rows as long as it, got "
            f"{header[:40]!r} and {len(whole):,}. Replace it."
        )
    return path


def _check_penn_treebank(folder: Path) -> Path:
    place = folder / "ptb"
    missing = [name for name in _PENN_TREEBANK_TOKENS if not (place / name).is_file()]
    if missing:
        raise FileNotFoundError(f"No Penn Treebank: put {', '.join(missing)} of the usual split into {place}.")
    for name, expected in _PENN_TREEBANK_TOKENS.items():
        text = (place / name).read_bytes()
        found = len(text.split()) + text.count(b"\n")  # the end of a line is a token too
        if found != expected:
            raise ValueError(f"{place / name} must have {expected:,} tokens, got {found:,}. Replace it.")
    return place


CHECKS: dict[str, Callable[[Path], Path]] = {
    "cifar10": cifar10.check,
    "cifar-split": _check_cifar_split,
    **{name: partial(_check_table, name) for name in _ROWS},
    "ptb": _check_penn_treebank,
}
