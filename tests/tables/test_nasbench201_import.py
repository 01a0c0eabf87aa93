import bz2
import os
import pickle
import re
from collections import OrderedDict, defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch

from advnas.tables.nasbench201 import all_cells, load
from advnas.tables.nasbench201_import import import_nats, import_pth, read_nats_record

CELL = all_cells()[1234]
EVALUATED_ON = {
    "cifar10-valid": {"x-valid": 80.0, "ori-test": 81.0},
    "cifar10": {"ori-test": 90.0},
    "cifar100": {"x-valid": 60.0, "x-test": 61.0, "ori-test": 62.0},
    "ImageNet16-120": {"x-valid": 40.0, "x-test": 41.0, "ori-test": 42.0},
}
SEEDS = {"cifar10-valid": [777, 888, 999], "cifar10": [777, 888], "cifar100": [777], "ImageNet16-120": [777]}


def a_run(dataset, seed, luck):
    """One training of one cell, with the kinds of numbers and containers of the official files."""
    accuracies = {f"{on}@199": accuracy + luck for on, accuracy in EVALUATED_ON[dataset].items()}
    early = {f"{on}@0": 10.0 for on in EVALUATED_ON[dataset]}
    return {
        "name": dataset,
        "net_state_dict": None,
        "train_acc1es": OrderedDict({0: 20.0, 199: 99.0}),
        "arch_config": {"channel": 16, "num_cells": 5, "class_num": 10},
        "params": np.float64(0.0733061 if dataset == "cifar10" else 0.08),
        "flop": 7.78305 if dataset == "cifar10" else 2.0,
        "seed": seed,
        "epochs": 200,
        "latency": [np.float32(0.25)],
        "eval_names": list(EVALUATED_ON[dataset]),
        "eval_acc1es": early | accuracies,
        "eval_times": defaultdict(float, {"x-valid@0": 1.5}),
    }


ALL_RESULTS = {
    (dataset, seed): a_run(dataset, seed, luck)
    for dataset, seeds in SEEDS.items()
    for luck, seed in enumerate(seeds)
}
ROW = [90.5, 81.0, 61.0, 60.0, 41.0, 40.0, 0.073306, 7.78305]


def a_record(cell, all_results=ALL_RESULTS):
    """What the official files hold on one cell and one number of epochs."""
    return {"arch_index": 0, "arch_str": cell, "all_results": all_results, "dataset_seed": SEEDS}


def write_nats(path, content, protocol=4):
    path.write_bytes(bz2.compress(pickle.dumps(content, protocol), compresslevel=1))
    return path


def write_pth(path, content, **options):
    torch.save(content, path, **options)
    return path


def pth_content(records):
    infos = OrderedDict((index, {"full": record, "less": None}) for index, record in enumerate(records))
    return {"meta_archs": list(all_cells()), "arch2infos": infos, "evaluated_indexes": set(range(len(infos)))}


# What is read


def test_a_nats_file_gives_the_row_of_its_cell(tmp_path):
    """Mean over the seeds of the last of 200 epochs; costs are those on CIFAR-10."""
    content = OrderedDict({"12": a_record(CELL, all_results={}), "200": a_record(CELL)})
    assert read_nats_record(write_nats(tmp_path / "000000.pickle.pbz2", content)) == (CELL, ROW)


def test_means_are_rounded_like_the_published_table(tmp_path):
    """So that the same three accuracies tie, whatever their order."""

    def row(accuracies):
        runs = [{**a_run("cifar10-valid", 777, 0), "eval_acc1es": {"x-valid@199": each}} for each in accuracies]
        of_seed = {("cifar10-valid", seed): run for seed, run in zip(SEEDS["cifar10-valid"], runs, strict=True)}
        return read_nats_record(write_nats(tmp_path / "file", {"200": a_record(CELL, ALL_RESULTS | of_seed)}))[1]

    assert row([84.1, 84.2, 84.7]) == row([84.7, 84.1, 84.2])
    assert row([84.1, 84.2, 84.7])[1] == 84.3333


def test_a_whole_nats_folder_becomes_a_table(tmp_path):
    accuracies = {"ori-test@199": 1.0, "x-valid@199": 2.0, "x-test@199": 3.0}
    run = {"eval_acc1es": accuracies, "params": 4.0, "flop": 5.0}
    one_seed = {dataset: [777] for dataset in SEEDS}
    small = {"dataset_seed": one_seed, "all_results": {(dataset, 777): run for dataset in SEEDS}}
    for index, cell in enumerate(reversed(all_cells())):
        write_nats(tmp_path / f"{index:06d}.pickle.pbz2", {"200": {"arch_str": cell, **small}})
    table = import_nats(tmp_path)
    assert table.cells == all_cells()[::-1]
    assert (table.values == [1, 2, 3, 2, 3, 2, 4, 5]).all()


def test_a_whole_pth_file_becomes_a_table_that_can_be_saved(tmp_path):
    unlucky = {key: a_run(*key, luck=-5) for key in ALL_RESULTS}
    records = [a_record(cell, unlucky if cell == CELL else ALL_RESULTS) for cell in reversed(all_cells())]
    # The official files are older than torch's zip format.
    path = write_pth(tmp_path / "old.pth", pth_content(records), _use_new_zipfile_serialization=False)
    table = import_pth(path)
    assert table.cells == all_cells()[::-1]
    assert table.entry(all_cells()[0]).accuracy["cifar10"] == {"test": 90.5, "valid": 81.0}
    assert table.entry(CELL).accuracy["imagenet16"] == {"test": 36.0, "valid": 35.0}
    assert table.rank(CELL) == 15_625
    table.save(tmp_path / "nasbench201.csv.gz")
    assert load(tmp_path / "nasbench201.csv.gz") == table


@pytest.mark.parametrize("module", [b"numpy._core.multiarray", b"numpy.core.multiarray"])
@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int64, np.int32])
def test_numbers_of_any_numpy_are_read(tmp_path, kind, module):
    """The official files were written by a numpy whose modules had other names."""
    runs = {key: run | {"params": kind(2)} for key, run in ALL_RESULTS.items()}
    written = pickle.dumps({"200": a_record(CELL, runs)}, protocol=3)
    assert written.count(b"core.multiarray") == 1
    path = tmp_path / "file"
    path.write_bytes(bz2.compress(re.sub(rb"numpy\._?core\.multiarray", module, written)))
    assert read_nats_record(path)[1][-2] == 2


# What is refused


class Hostile:
    """Calls a function of its choice in whoever unpickles it carelessly."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def attacks(marker):
    return {
        "mkdir": Hostile(os.mkdir, str(marker)),
        "open": Hostile(open, str(marker), "w"),
        "eval": Hostile(eval, f"open({str(marker)!r}, 'w').close()"),
    }


ATTACKS = tuple(attacks(Path("marker")))


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_attacks_of_these_tests_are_real(tmp_path, attack):
    marker = tmp_path / "marker"
    result = pickle.loads(pickle.dumps(attacks(marker)[attack]))
    assert marker.exists()
    if attack == "open":
        result.close()


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("protocol", [2, 4])
def test_a_nats_file_cannot_run_code(tmp_path, attack, protocol):
    marker = tmp_path / "marker"
    content = {"200": a_record(attacks(marker)[attack])}
    path = write_nats(tmp_path / "000000.pickle.pbz2", content, protocol)
    with pytest.raises(
        ValueError, match=rf"000000.pickle.pbz2 asks for the Python object \S*{attack}.*refused"
    ) as error:
        read_nats_record(path)
    assert "nothing of the file was run" in str(error.value)
    assert not marker.exists()


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("zipped", [True, False])
def test_a_pth_file_cannot_run_code(tmp_path, attack, zipped):
    marker = tmp_path / "marker"
    content = pth_content([a_record(attacks(marker)[attack])])
    path = write_pth(tmp_path / "hostile.pth", content, _use_new_zipfile_serialization=zipped)
    with pytest.raises(ValueError, match=rf"hostile.pth asks for the Python object \S*{attack}.*refused") as error:
        import_pth(path)
    assert "nothing of the file was run" in str(error.value)
    assert not marker.exists()


def test_a_file_cannot_change_what_it_is_allowed_to_name(tmp_path):
    """The instruction BUILD sets attributes, of classes too: here one of what stands for numpy's scalars."""
    attribute = pickle.dumps({"__new__": 1}, protocol=2)[2:-1]
    path = tmp_path / "build.pbz2"
    path.write_bytes(bz2.compress(b"\x80\x02cnumpy.core.multiarray\nscalar\nN" + attribute + b"\x86b."))
    with pytest.raises(ValueError, match=r"build.pbz2 cannot be read .*the file sets '__new__'"):
        read_nats_record(path)


@pytest.mark.parametrize("number", [np.void(b"12345678"), np.datetime64(0, "s"), np.complex128(1)])
def test_only_plain_numbers_of_numpy_are_read(tmp_path, number):
    with pytest.raises(ValueError, match="file cannot be read"):
        read_nats_record(write_nats(tmp_path / "file", {"200": number}))


# What is not whole


@pytest.mark.parametrize("keep", [0, 3, 40, -1])
def test_a_truncated_nats_file_is_named(tmp_path, keep):
    path = write_nats(tmp_path / "000000.pickle.pbz2", {"200": a_record(CELL)})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"000000.pickle.pbz2 cannot be read .* Get it again if it is cut short"):
        read_nats_record(path)


@pytest.mark.parametrize("keep", [0, 3, 40, 2000, -1])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_truncated_pth_file_is_named(tmp_path, keep, zipped):
    path = write_pth(tmp_path / "cut.pth", pth_content([a_record(CELL)]), _use_new_zipfile_serialization=zipped)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"cut.pth cannot be read .* Get it again if it is cut short"):
        import_pth(path)


def test_a_folder_with_too_few_files_is_told_which_is_missing(tmp_path):
    write_nats(tmp_path / "000000.pickle.pbz2", {"200": a_record(CELL)})
    with pytest.raises(FileNotFoundError, match=r"15,624 of the 15,625 files .* the first is 000001.pickle.pbz2"):
        import_nats(tmp_path)


def test_a_pth_file_with_too_few_cells_is_told_which_is_missing(tmp_path):
    path = write_pth(tmp_path / "few.pth", pth_content([a_record(cell) for cell in all_cells()[:2]]))
    with pytest.raises(ValueError, match=r"few.pth: 15,623 of the 15,625 cells are missing, the first is \|none~0"):
        import_pth(path)


@pytest.mark.parametrize("content", [{"12": {}, "90": {}}, [1, 2], None])
def test_a_file_of_another_space_is_told_apart(tmp_path, content):
    with pytest.raises(
        ValueError, match="no results after 200 epochs, so it is not of NATS-Bench's topology space"
    ):
        read_nats_record(write_nats(tmp_path / "file", content))


@pytest.mark.parametrize("content", [{"state_dict": {}}, [1, 2], {"arch2infos": {0: {"less": {}}}}])
def test_a_pth_file_of_something_else_is_told_apart(tmp_path, content):
    with pytest.raises(ValueError, match=r"other.pth is not a NAS-Bench-201 file.*NAS-Bench-201-v1_1-096897.pth"):
        import_pth(write_pth(tmp_path / "other.pth", content))


def test_a_pth_file_of_tensors_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"other.pth asks for .*_rebuild_tensor_v2, which a table of"):
        import_pth(write_pth(tmp_path / "other.pth", torch.zeros(2)))


@pytest.mark.parametrize(
    ("spoil", "explanation"),
    [
        ({"dataset_seed": {}}, "KeyError: 'cifar10'"),
        ({"dataset_seed": SEEDS | {"cifar10": []}}, "StatisticsError"),
        ({"all_results": {}}, r"KeyError: \('cifar10', 777\)"),
        (
            {"all_results": ALL_RESULTS | {("cifar100", 777): {"eval_acc1es": {"x-test@11": 1.0}}}},
            "KeyError: 'x-test@199'",
        ),
        ({"all_results": ALL_RESULTS | {("cifar100", 777): None}}, "TypeError"),
    ],
)
def test_a_record_that_lacks_something_is_told_what(tmp_path, spoil, explanation):
    record = a_record(CELL) | spoil
    with pytest.raises(ValueError, match=rf"file: the 200-epoch results are not whole \({explanation}"):
        read_nats_record(write_nats(tmp_path / "file", {"200": record}))
    with pytest.raises(ValueError, match=rf"file.pth, cell number 0: .* not whole \(.*{explanation}"):
        import_pth(write_pth(tmp_path / "file.pth", pth_content([record])))


def test_a_file_that_is_not_there_is_an_ordinary_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        import_pth(tmp_path / "absent.pth")
    with pytest.raises(FileNotFoundError):
        read_nats_record(tmp_path / "absent.pickle.pbz2")


@pytest.mark.parametrize("number", [-1.0, 100.5, float("nan"), float("inf"), 1e300, 10**400])
def test_numbers_out_of_range_are_refused_by_name(tmp_path, number):
    run = {**a_run("cifar10", 777, 0), "eval_acc1es": {"ori-test@199": number}}
    records = [
        a_record(cell, {**ALL_RESULTS, ("cifar10", 777): run, ("cifar10", 888): run}) for cell in all_cells()
    ]
    path = write_pth(tmp_path / "file.pth", pth_content(records))
    with pytest.raises(ValueError, match=r"file\.pth.*(where a number from 0 to 100 belongs|not whole \(Overflow)"):
        import_pth(path)
