import os

import pytest

from advnas.records.files import delete_temporary_files, is_plain_name, parse_json, replacing, write_atomically


def test_a_file_is_replaced_completely_and_no_temporary_file_stays(tmp_path):
    path = tmp_path / "deep" / "result.json"
    write_atomically(path, "old")
    write_atomically(path, "new")
    assert path.read_text() == "new"
    assert [file.name for file in path.parent.iterdir()] == ["result.json"]


def test_a_crash_while_writing_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    write_atomically(path, "old")

    def crash(descriptor):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", crash)
    with pytest.raises(OSError, match="no space"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["result.json"]


def test_an_error_in_the_block_leaves_the_old_file(tmp_path):
    path = tmp_path / "state"
    write_atomically(path, "old")

    def write_half():
        with replacing(path) as file:
            file.write(b"ne")
            raise InterruptedError

    with pytest.raises(InterruptedError):
        write_half()
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["state"]


def test_the_file_has_its_old_content_until_the_block_ends(tmp_path):
    path = tmp_path / "state"
    with replacing(path) as file:
        file.write(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new"


def test_temporary_files_of_killed_writers_are_deleted(tmp_path):
    (tmp_path / "result.json").write_text("whole")
    for name in (".checkpoint-000000001.pt.4711.tmp", ".result.json.4712.tmp"):
        (tmp_path / name).write_bytes(b"half")
    delete_temporary_files(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.parametrize("name", ["checkpoint-000000001.pt", "a", "..a", "größer", "a b"])
def test_plain_names(name):
    assert is_plain_name(name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "/etc/passwd", "../a", "a/b", "a\\b", "C:a", "a\0b", None, 1, b"a"]
)
def test_names_that_lead_elsewhere(name):
    assert not is_plain_name(name)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"rubbish", r"it is not JSON: 'rubbish'"),
        (b"\xff", r"it is not JSON"),
        (b"[" * 99_999, r"it is not JSON"),
        (b"1" * 9_999, r"it is not JSON"),
        (b"[]", r"it must hold a JSON object, it holds a list"),
    ],
)
def test_what_is_no_json_object_is_refused(content, message):
    with pytest.raises(ValueError, match=message):
        parse_json(content, "it")
