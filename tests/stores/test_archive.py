import copy
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from advnas import stores as weights
from advnas.records.checkpoints import load_state

BUDGET = 600_000
EPOCHS = 4


def disk():
    return weights.Disk(BUDGET)


def segments(folder):
    return sorted(path.name for path in folder.glob("segment-*.bin"))


def manifests(folder):
    states = [load_state(path) for path in sorted(folder.glob("checkpoint-*.pt"))]
    return [state["work"]["search"]["weights"]["units"] for state in states]


def run(lab, store, folder, epochs=EPOCHS, on_step=None, **options):
    search = lab.search_with(store, steps=None)
    search.run(lab.task(), epochs=epochs, warmup=1, folder=folder, on_step=on_step, **options)
    return search


class Stop(Exception):
    pass


def interrupted(lab, store, folder, after):
    """A search that ends by an error after so many steps."""
    steps = itertools.count(1)

    def fail(step):
        if next(steps) == after:
            raise Stop

    with pytest.raises(Stop):
        run(lab, store, folder, on_step=fail)


@pytest.fixture(scope="module")
def whole(lab, tmp_path_factory):
    """The same search in ordinary memory, without an interruption."""
    with torch.random.fork_rng(devices=[]):
        return run(lab, "resident", tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(("before", "after"), [("disk", "disk"), ("disk", "resident"), ("resident", "disk")])
def test_a_search_goes_on_bit_for_bit_also_in_another_store(lab, whole, tmp_path, before, after):
    store = {"disk": disk, "resident": lambda: "resident"}
    interrupted(lab, store[before](), tmp_path, after=14)
    lab.assert_equal(run(lab, store[after](), tmp_path, resume=True), whole)


def test_a_host_store_reads_the_checkpoint_of_a_disk_store(lab, whole, tmp_path):
    interrupted(lab, disk(), tmp_path, after=14)
    lab.assert_equal(run(lab, weights.Host(), tmp_path, resume=True), whole)


def test_only_what_changed_is_written_again(lab, tmp_path):
    search = lab.search_with(disk(), "random")
    first = search.state(tmp_path)["weights"]["units"]
    assert len(segments(tmp_path)) == 1
    drawn = search.weight_step(lab.loss_of).architecture
    second = search.state(tmp_path)["weights"]["units"]
    changed = {name.split(" ", 1)[1] for name in first if first[name] != second[name]}
    assert changed == {f"{decision} {operation}" for decision, operation in drawn.items()}
    assert len(segments(tmp_path)) == 2
    search.architecture_step(lab.loss_of)
    assert search.state(tmp_path)["weights"]["units"] == second
    assert len(segments(tmp_path)) == 2


def test_the_state_in_a_folder_is_small_and_holds_no_candidates(lab, tmp_path):
    search = lab.search_with(disk(), "random")
    lab.take_steps(search, 6)
    state = search.state(tmp_path)["weights"]
    assert set(state["model"]) >= {"stem.weight", "last.weight", "body.0.candidates.0.1.running_mean"}
    assert not any("candidates.0.0" in name for name in state["model"] if not name.startswith("body.4"))
    numbers = {index: values for index, values in state["optimizer"]["state"].items() if values}
    assert len(numbers) == 6  # of the stem, the last layer and the convolution that two candidates share


def test_segments_that_no_checkpoint_needs_are_removed_and_stale_ones_are_emptied(lab, tmp_path):
    search = lab.search_with(disk(), "random", steps=36)
    kept = []
    for number in range(12):
        for _ in range(3):
            search.weight_step(lab.loss_of)
        kept = [*kept[-1:], search.state(tmp_path)["weights"]["units"]]
        needed = {place[0] for manifest in kept for place in manifest.values()}
        assert needed <= set(segments(tmp_path))
        assert len(set(segments(tmp_path)) - needed) <= number  # at most those of the checkpoint before
    live = sum(place[2] for place in kept[-1].values())
    on_disk = sum((tmp_path / name).stat().st_size for name in segments(tmp_path))
    assert on_disk <= 4 * live


def test_a_search_that_is_set_back_forgets_the_optimizer_state_it_had_in_between(lab, tmp_path):
    search, resident = lab.search_with(disk(), "random"), lab.search_with("resident", "random")
    start = copy.deepcopy(search.state())
    lab.take_steps(search, 5)
    search.restore(start)
    resumed = lab.search_with(disk(), "random")
    resumed.restore(search.state(tmp_path), tmp_path)
    for one in (resumed, search, resident):
        lab.take_steps(one, 2)
    lab.assert_equal(resumed, resident)
    lab.assert_equal(search, resident)


def test_another_folder_gets_everything_and_the_first_one_keeps_what_it_has(lab, tmp_path):
    search = lab.search_with(disk(), "random")
    first = copy.deepcopy(search.state(tmp_path / "one"))
    lab.take_steps(search, 1)
    second = search.state(tmp_path / "two")
    assert set(first["weights"]["units"]) == set(second["weights"]["units"])
    lab.take_steps(search, 1, start=1)
    search.state(tmp_path / "one")
    lab.search_with(disk(), "random").restore(first, tmp_path / "one")
    lab.search_with(disk(), "random").restore(second, tmp_path / "two")


def damage(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("harm", [damage, Path.unlink, lambda path: os.truncate(path, 100)])
def test_a_damaged_segment_costs_the_steps_since_the_checkpoint_before(lab, whole, tmp_path, harm):
    interrupted(lab, disk(), tmp_path, after=14)
    older, newest = manifests(tmp_path)
    fresh = {place[0] for place in newest.values()} - {place[0] for place in older.values()}
    for name in fresh:
        harm(tmp_path / name)
    with pytest.warns(UserWarning, match=r"segment-.* (damaged|missing).*Resuming from an earlier checkpoint"):
        resumed = run(lab, disk(), tmp_path, resume=True)
    lab.assert_equal(resumed, whole)


def test_a_state_with_segments_needs_its_folder(lab, tmp_path):
    state = lab.search_with(disk()).state(tmp_path)
    with pytest.raises(ValueError, match=r"Write restore\(state, folder\)"):
        lab.search_with(disk()).restore(state)


def test_the_checkpoint_of_another_network_is_refused(lab, tmp_path):
    search = lab.search_with(disk())
    state = search.state(tmp_path)
    state["weights"]["units"].popitem()
    with pytest.raises(ValueError, match=r"of another network: they differ in"):
        lab.search_with(disk()).restore(state, tmp_path)
    state = search.state(tmp_path)
    del state["weights"]["model"]["stem.weight"]
    with pytest.raises(ValueError, match=r"of another network: they differ in stem\.weight"):
        lab.search_with(disk()).restore(state, tmp_path)


def test_a_save_that_fails_leaves_the_last_checkpoint_and_no_temporary_file(lab, whole, tmp_path, monkeypatch):
    """The disk is full while the segment of the third checkpoint is written."""
    fsync, calls = os.fsync, itertools.count(1)

    def full(descriptor):
        if next(calls) == 16:
            raise OSError("No space left on device")
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            run(lab, disk(), tmp_path)
    assert not list(tmp_path.glob(".*"))
    lab.assert_equal(run(lab, disk(), tmp_path, resume=True), whole)


# A checkpoint is: fsync of the journal; fsync of the segment, its new name, fsync of the folder; the same for the
# data; the same for the manifest; then the removal of an older checkpoint. The third is the first that removes one.
MOMENTS = [
    "fsync:1:before",  # nothing is there yet
    "replace:1:before",
    "replace:1:after",  # a segment that no checkpoint knows
    "replace:2:before",  # the first data are written, but have no name
    "replace:2:after",  # data without a manifest
    "replace:3:before",
    "replace:3:after",  # the first checkpoint is complete
    "fsync:8:before",
    "fsync:9:after",
    "replace:4:after",
    "replace:5:after",
    "fsync:13:after",
    "replace:6:before",
    "unlink:9:before",  # from here on something is removed: temporary files, segments, checkpoints
    "unlink:10:after",
    "unlink:11:before",
    "unlink:12:after",
    "unlink:13:after",
    "unlink:14:before",
    "unlink:15:after",
    "replace:9:after",
]


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A folder for every moment, with what a search left that was killed then."""
    folder = tmp_path_factory.mktemp("killed")
    script = Path(__file__).with_name("search_to_kill.py")
    subprocess.run([sys.executable, script, folder, str(EPOCHS), *MOMENTS], check=True, timeout=300)
    return folder


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_search_that_is_killed_goes_on_bit_for_bit(lab, whole, killed, moment):
    lab.assert_equal(run(lab, disk(), killed / moment, resume=True), whole)
    assert not list((killed / moment).glob(".*"))
