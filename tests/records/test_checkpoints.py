import hashlib
import json
import os
import pickle

import pytest
import torch

from advnas.records import checkpoints as module
from advnas.records.checkpoints import Checkpoints, DamagedCheckpoint, load_state, resume_from, save_state


class Hostile:
    """Makes a folder when it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


# One file


def test_a_state_is_read_as_it_was_saved_and_torch_opens_the_file(tmp_path):
    state = {"weights": torch.randn(2, 3), "steps": 7, "best": ["a", 0.5], "betas": (0.5, 0.9), 3: None}
    save_state(tmp_path / "state.pt", state)
    for loaded in (load_state(tmp_path / "state.pt"), torch.load(tmp_path / "state.pt", weights_only=True)):
        assert torch.equal(loaded["weights"], state["weights"])
        assert {**loaded, "weights": 0} == {**state, "weights": 0}


def test_a_state_that_cannot_be_read_again_is_not_saved_and_its_key_is_named(tmp_path, monkeypatch):
    """As if torch refused what `plain` takes to be plain."""
    path = tmp_path / "state.pt"
    save_state(path, {"steps": 1})
    monkeypatch.setattr("advnas.records.plain.plain", lambda value, name: value)
    with pytest.raises(ValueError, match=r"^search\.groups\.1\.lr could not be read again .*so nothing was saved"):
        save_state(path, {"a": 1, "search": {"groups": [{}, {"lr": Hostile(tmp_path / "executed")}]}})
    assert load_state(path) == {"steps": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["state.pt"]


def test_a_state_cannot_run_code(tmp_path):
    torch.save({"weights": Hostile(tmp_path / "executed")}, tmp_path / "state.pt")
    with pytest.raises(DamagedCheckpoint, match=r"state\.pt is damaged, or not a checkpoint.*remove it"):
        load_state(tmp_path / "state.pt")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("content", [[1], torch.zeros(1), "text"])
def test_only_a_dict_is_a_state(tmp_path, content):
    torch.save(content, tmp_path / "state.pt")
    with pytest.raises(DamagedCheckpoint, match=rf"it holds a {type(content).__name__}"):
        load_state(tmp_path / "state.pt")


def test_a_missing_file_is_not_a_damaged_one(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_state(tmp_path / "state.pt")


def test_a_state_that_does_not_fit_is_named(tmp_path):
    def load(state):
        raise ValueError("it has 3 decisions")

    save_state(tmp_path / "state.pt", {})
    with pytest.raises(
        ValueError, match=r"state\.pt does not fit this run: it has 3 decisions\. Nothing was changed"
    ):
        resume_from(tmp_path / "state.pt", load)


# A folder of states


def resumed(folder):
    """The state that a run in this folder would resume from; None if it would start."""
    states = []
    assert Checkpoints(folder).resume(states.append) == bool(states)
    return states[0] if states else None


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def data(folder):
    return sorted(folder.glob("checkpoint-*.pt"))


@pytest.fixture
def saved(tmp_path):
    """A folder with the states of steps 1 and 2."""
    for step in (1, 2):
        Checkpoints(tmp_path).save({"step": step}, step)
    return tmp_path


def test_the_last_two_states_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    assert resumed(tmp_path) is None
    for step in (5, 50, 500):
        checkpoints.save({"step": step}, step)
    assert resumed(tmp_path) == {"step": 500}
    names = [f"checkpoint-{step:09d}{suffix}" for step in (50, 500) for suffix in (".json", ".pt")]
    assert sorted(files(tmp_path)) == names
    checkpoints.clear()
    assert not files(tmp_path)
    assert resumed(tmp_path) is None


def test_the_manifest_gives_size_and_hash_and_torch_opens_the_data(saved):
    path = data(saved)[-1]
    content = path.read_bytes()
    assert json.loads(path.with_suffix(".json").read_text()) == {
        "format": 2,
        "step": 2,
        "files": {path.name: {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}},
    }
    assert torch.load(path, weights_only=True) == {"step": 2}


def overwritten(content):
    return lambda path: path.write_bytes(content)


def test_the_manifest_is_written_after_the_data(tmp_path, monkeypatch):
    """A process that is killed in between leaves data without a manifest, which is no state."""
    Checkpoints(tmp_path).save({"step": 1}, 1)

    order, replace = [], os.replace
    monkeypatch.setattr(os, "replace", lambda source, target: (order.append(target), replace(source, target)))
    Checkpoints(tmp_path).save({"step": 2}, 2)
    assert [path.suffix for path in order] == [".pt", ".json"]
    order[-1].unlink()
    assert resumed(tmp_path) == {"step": 1}
    Checkpoints(tmp_path).save({"step": 3}, 3)
    assert [path.stem[-1] for path in data(tmp_path)] == ["1", "3"]


def test_the_first_state_without_a_manifest_is_no_state(tmp_path):
    Checkpoints(tmp_path).save({"step": 1}, 1)
    (tmp_path / "checkpoint-000000001.json").unlink()
    assert resumed(tmp_path) is None


DAMAGE = {
    "cut": lambda path: os.truncate(path, path.stat().st_size - 10),
    "empty": overwritten(b""),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "flipped": lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\x01"),
    "other": overwritten(b"{}"),
    "list": overwritten(b"[]"),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("suffix", [".pt", ".json"])
def test_a_damaged_newest_state_falls_back_to_the_one_before(saved, damage, suffix):
    newest = data(saved)[-1].with_suffix(suffix)
    DAMAGE[damage](newest)
    with pytest.warns(UserWarning, match=rf"{newest.name} is damaged.*earlier checkpoint"):
        assert resumed(saved) == {"step": 1}


def test_missing_data_fall_back_to_the_state_before(saved):
    data(saved)[-1].unlink()
    with pytest.warns(UserWarning, match=r"000002\.pt is missing.*earlier checkpoint"):
        assert resumed(saved) == {"step": 1}


@pytest.mark.parametrize("suffix", [".pt", ".json"])
def test_a_run_whose_states_are_all_damaged_is_not_started_over(saved, suffix):
    for path in saved.glob(f"*{suffix}"):
        path.write_bytes(b"rubbish")
    before = files(saved)
    message = rf"000002\{suffix} is damaged.*000001\{suffix} is damaged.*remove them to start over"
    with pytest.raises(DamagedCheckpoint, match=message):
        resumed(saved)
    assert files(saved) == before


def test_a_lost_manifest_of_an_earlier_state_is_damage_and_not_a_killed_writer(saved):
    for path in saved.glob("*.json"):
        path.unlink()
    with pytest.raises(DamagedCheckpoint, match=r"000001\.json is missing"):
        resumed(saved)


def test_a_damaged_state_is_replaced_by_one_of_the_same_step(saved):
    data(saved)[-1].write_bytes(b"rubbish")
    Checkpoints(saved).save({"again": 2}, 2)
    assert resumed(saved) == {"again": 2}


@pytest.mark.parametrize("entry", ["../secret", "/etc/hostname", "a/b", "..", ""])
def test_a_manifest_cannot_name_files_elsewhere(saved, entry):
    (saved.parent / "secret").write_bytes(b"")
    for path in saved.glob("*.json"):
        manifest = json.loads(path.read_text())
        manifest["files"][entry] = {"sha256": hashlib.sha256(b"").hexdigest(), "bytes": 0}
        path.write_text(json.dumps(manifest))
    with pytest.raises(DamagedCheckpoint, match=r"is not a file of its folder"):
        resumed(saved)


@pytest.mark.parametrize(
    "change",
    [
        {"format": 1},
        {"format": "2"},
        {"step": 1},
        {"step": "2"},
        {"step": True},
        {"files": {}},
        {"files": []},
        {"files": {"checkpoint-000000002.pt": None}},
        {"files": {"checkpoint-000000002.pt": {"sha256": "0", "bytes": "1"}}},
        {"files": {"checkpoint-000000002.pt": {"sha256": "0"}}},
    ],
)
def test_a_manifest_of_another_form_is_damage(saved, change):
    path = data(saved)[-1].with_suffix(".json")
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.warns(UserWarning, match=rf"{path.name} is damaged.*earlier checkpoint"):
        assert resumed(saved) == {"step": 1}


def test_nothing_is_read_of_a_file_of_another_size(saved, monkeypatch):
    for path in saved.glob("*.pt"):
        os.truncate(path, 2**40)  # takes no room on the disk
    monkeypatch.setattr(module, "_fingerprint", lambda path: pytest.fail("it was read"))
    with pytest.raises(DamagedCheckpoint, match=f"it has {2**40} bytes instead of"):
        resumed(saved)


def test_a_state_of_another_run_is_refused_although_there_is_an_older_one(saved):
    def load(state):
        raise ValueError(f"it is of step {state['step']}")

    before = files(saved)
    with pytest.raises(
        ValueError, match=r"000002\.pt does not fit this run: it is of step 2\. Nothing was changed"
    ):
        Checkpoints(saved).resume(load)
    assert files(saved) == before


def test_a_state_that_does_not_fit_is_told_with_the_damaged_ones_after_it(saved):
    def refuse(state):
        raise ValueError("other settings: steps is 3 now and was 2")

    newest = sorted(saved.glob("*.pt"))[-1]
    newest.write_bytes(b"")
    with pytest.raises(ValueError, match="steps is 3 now and was 2") as caught:
        Checkpoints(saved).resume(refuse)
    assert f"Newer checkpoints were skipped: {newest} is damaged: it has 0 bytes" in str(caught.value)
    assert "resume it with its old number of epochs first" in str(caught.value)


def test_a_state_whose_further_files_are_damaged_falls_back(saved):
    loaded = []

    def load(state):
        if state["step"] == 2:
            raise DamagedCheckpoint("segment 7 is damaged.")
        loaded.append(state)

    with pytest.warns(UserWarning, match=r"segment 7 is damaged\. Resuming from an earlier checkpoint"):
        assert Checkpoints(saved).resume(load)
    assert loaded == [{"step": 1}]


def test_temporary_files_of_a_killed_writer_are_deleted_on_resume(saved):
    (saved / ".checkpoint-000000003.pt.4711.tmp").write_bytes(b"half")
    assert resumed(saved) == {"step": 2}
    assert len(files(saved)) == 4


def version_1(path, content):
    path.write_bytes(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)


def test_a_checkpoint_of_version_0_1_is_refused(tmp_path):
    for step in (1, 2):
        version_1(tmp_path / f"checkpoint-{step:09d}.pt", pickle.dumps({}))
    before = files(tmp_path)
    with pytest.raises(ValueError, match=r"000002\.pt was written by version 0\.1 of advnas and cannot be read by"):
        resumed(tmp_path)
    with pytest.raises(ValueError, match=r"written by version 0\.1"):
        load_state(tmp_path / "checkpoint-000000001.pt")
    assert files(tmp_path) == before
