import hashlib
import io
import json
import os

import pytest
import torch

from advnas.records.checkpoints import Checkpoints, DamagedCheckpoint, load_checkpoint, save_checkpoint
from advnas.records.files import write_atomically
from advnas.records.journal import Journal, read_journal


def test_a_file_is_replaced_whole_and_no_draft_stays(tmp_path):
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


def test_every_line_of_a_journal_is_readable_as_soon_as_it_is_written(tmp_path):
    journal = Journal(tmp_path / "runs" / "metrics.jsonl")
    for number in range(3):
        journal.append({"number": number})
        assert [line["number"] for line in read_journal(journal.path)] == list(range(number + 1))
    journal.close()


@pytest.mark.parametrize("torn", ['{"num', "\x00", "{"])
def test_a_torn_last_line_is_left_out_and_cut_off_before_the_next_is_written(tmp_path, torn):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"number": 1}\n' + torn)
    assert list(read_journal(path)) == [{"number": 1}]
    journal = Journal(path)
    journal.append({"number": 2})
    journal.close()
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{"number": 1}, {"number": 2}]


def test_a_journal_that_holds_nothing_but_a_torn_line_starts_anew(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"num')
    Journal(path).close()
    assert path.read_text() == ""


def test_a_whole_journal_is_continued_untouched(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"number": 1}\n')
    Journal(path).close()
    assert path.read_text() == '{"number": 1}\n'


def test_a_broken_line_in_the_middle_is_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"number": 1}\nrubbish\n{"number": 3}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2 is not JSON: 'rubbish'"):
        list(read_journal(path))


# Checkpoints


def test_a_checkpoint_gives_back_what_was_saved(tmp_path):
    state = {
        "weights": torch.randn(2, 3, generator=torch.Generator().manual_seed(0)),
        "steps": 7,
        "best": ["a", 0.5],
    }
    save_checkpoint(tmp_path / "state.pt", state)
    loaded = load_checkpoint(tmp_path / "state.pt")
    assert torch.equal(loaded.pop("weights"), state.pop("weights"))
    assert loaded == state


def resumed(checkpoints):
    """The state that a run in this folder would go on from; None if it would start."""
    states = []
    assert checkpoints.resume(states.append) == bool(states)
    return states[0] if states else None


def test_the_last_two_checkpoints_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    assert resumed(checkpoints) is None
    for step in (5, 50, 500):
        checkpoints.save({"step": step}, step)
    assert resumed(checkpoints) == {"step": 500}
    assert len(list(tmp_path.iterdir())) == 2
    checkpoints.clear()
    assert resumed(checkpoints) is None


@pytest.mark.parametrize(
    "damage", [lambda content: content[:-100], lambda content: b"", lambda content: content + b"x"]
)
def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(tmp_path, damage):
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2):
        checkpoints.save({"step": step}, step)
    newest = max(tmp_path.iterdir())
    newest.write_bytes(damage(newest.read_bytes()))
    with pytest.warns(UserWarning, match=rf"{newest.name} is damaged.*earlier one"):
        assert resumed(checkpoints) == {"step": 1}


def test_a_run_whose_checkpoints_are_all_damaged_is_not_started_over(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2):
        checkpoints.save({"step": step}, step)
    for path in tmp_path.iterdir():
        path.write_bytes(b"rubbish")
    with pytest.raises(DamagedCheckpoint, match=r"000002\.pt is damaged.*000001\.pt is damaged.*starts over"):
        resumed(checkpoints)
    assert len(list(tmp_path.iterdir())) == 2


def test_what_a_killed_process_was_writing_is_cleared_away(tmp_path):
    (tmp_path / "result.json").write_text("whole")
    for name in (".checkpoint-000000001.pt.4711.draft", ".result.json.4712.draft"):
        (tmp_path / name).write_bytes(b"half")
    assert not Checkpoints(tmp_path).resume(lambda state: None)
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


class Hostile:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def test_a_checkpoint_cannot_execute_code(tmp_path):
    marker = tmp_path / "owned"
    buffer = io.BytesIO()
    torch.save({"weights": Hostile(marker)}, buffer)
    checksum = hashlib.sha256(buffer.getvalue()).hexdigest().encode()
    (tmp_path / "state.pt").write_bytes(checksum + b"\n" + buffer.getvalue())
    with pytest.raises(DamagedCheckpoint, match=r"state\.pt is damaged, or no checkpoint.*Remove it"):
        load_checkpoint(tmp_path / "state.pt")
    assert not marker.exists()
