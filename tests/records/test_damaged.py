"""Every reader refuses files that are not what was written, by name. No step is lost, and nothing is executed.

One section per reader. Its callers pass its errors on; that they do is shown once per caller.
"""

import builtins
import copy
import hashlib
import io
import json
import math
import os
import pickle
import random
import subprocess
from contextlib import suppress
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from advnas import Architecture, Choice, NonFiniteLoss, Search, Task, Zero
from advnas.export import export, load_plain
from advnas.records.checkpoints import Checkpoints, DamagedCheckpoint, load_state
from advnas.reports.study import read_study
from advnas.retrain import Recipe, retrain
from advnas.search import SearchRun
from advnas.studies.built_in import MAKE_SEARCH
from advnas.studies.folder import claim_folder
from advnas.studies.own_network import OwnNetworkSettings, OwnNetworkStudy
from advnas.studies.run import read_results, run_folder, run_search, run_warmup, warmup_file

SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


# What can happen to the bytes of a file


def flip(content, randomly):
    changed = bytearray(content)
    for _ in range(randomly.choice([1, 1, 2, 16])):
        changed[randomly.randrange(len(changed))] ^= 1 << randomly.randrange(8)
    return bytes(changed)


def cut(content, randomly):
    return content[: randomly.randrange(len(content))]


def insert(content, randomly):
    place = randomly.randrange(len(content) + 1)
    return content[:place] + randomly.randbytes(randomly.choice([1, 7, 512])) + content[place:]


def remove(content, randomly):
    start, end = sorted(randomly.choices(range(len(content) + 1), k=2))
    return content[:start] + content[end:]


def swap(content, randomly):
    a, b, c, d = sorted(randomly.choices(range(len(content) + 1), k=4))
    return content[:a] + content[c:d] + content[b:c] + content[a:b] + content[d:]


def blank(content, randomly):
    start, end = sorted(randomly.choices(range(len(content) + 1), k=2))
    return content[:start] + bytes(end - start) + content[end:]


def replace(content, randomly):
    others = (b"", b"\n", b"{}", b"PK\x03\x04", pickle.dumps({"a": 1}), b"\x80\x02.", b"\xff\xfe", b"[" * 99_999)
    return randomly.choice(others)


def damaged(content, count, seed=0):
    """Many versions of a file."""
    randomly = random.Random(seed)
    ways = (flip, cut, insert, remove, swap, blank, replace)
    versions = [ways[number % len(ways)](content, randomly) for number in range(count)]
    return [version for version in versions if version != content]


def to_bytes(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def seal(path, content):
    """Write the data of a checkpoint, and a manifest that fits it."""
    path.write_bytes(content)
    files = {path.name: {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}}
    manifest = {"format": 2, "step": int(path.stem.rpartition("-")[2]), "files": files}
    path.with_suffix(".json").write_text(json.dumps(manifest))


# What can be wrong with values that are read


def places(value, path=()):
    """All places in a tree of containers, outermost first."""
    yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in entries:
        yield from places(entry, (*path, key))


def changed(tree, path, change):
    """A copy in which one place is changed; change: takes the container and the key there."""
    tree = copy.deepcopy(tree)
    container = tree
    for key in path[:-1]:
        container = container[key]
    change(container, path[-1])
    return tree


def drop(container, key):
    del container[key]


def put(value):
    return lambda container, key: container.__setitem__(key, value)


def reshape(container, key):
    container[key] = container[key][None].repeat(2, *[1] * container[key].dim())


def shorten(container, key):
    container[key] = container[key].flatten()[:-1].clone()


def convert(container, key):
    container[key] = container[key].to(torch.complex64)


CHANGES = {
    "drop": drop,
    "None": put(None),
    "text": put("text"),
    "object": put({}),
    "list": put([]),
    "infinite": put(math.inf),
}
TENSOR_CHANGES = {"reshape": reshape, "shorten": shorten, "convert": convert}


def ill_formed(state):
    """(description, state) for every place of a state and every change that it does not survive."""
    for path in places(state):
        found = state
        for key in path:
            found = found[key]
        for name, change in (CHANGES | (TENSOR_CHANGES if isinstance(found, torch.Tensor) else {})).items():
            if path and not is_harmless(path, found, name):
                yield f"{path}: {name}", changed(state, path, change)


def is_harmless(path, found, name):
    """Changes that lead to a state which a search might have saved."""
    if (path[-1], name) == ("state", "object") or (path[-2:-1], name) == (("state",), "drop"):
        return True  # an operation that was never drawn has no momentum
    if (path[0], path[-1], name) == ("history", 1, "drop"):
        return True  # after one epoch there is one
    if (path, name) in ((("journals",), "drop"), (("journals",), "None")):
        return True  # early checkpoints of 0.2 do not know them
    if (path[0], path[-1], name) == ("journals", "sha256", "text"):
        return True  # the journal is another one then, which is told by a warning
    if path[-2:] == ("strategy", "baseline") or path[-1] == "process_best":
        return name in ("drop", "None")  # there is none before the first step
    if name == "infinite":
        return isinstance(found, float) or (path[-3:-2] == ("param_groups",) and type(found) is int)
    return (found is None and name == "None") or (found in ([], {}) and name in ("list", "object"))


# What would execute code if it were allowed to


class Hostile:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def hostile_files(marker):
    """Files that leave a marker when they are read carelessly, in the formats that torch.load knows."""
    objects = [
        Hostile(os.system, f"touch {marker}"),
        Hostile(os.mkdir, str(marker)),
        Hostile(builtins.exec, f"open({str(marker)!r}, 'w')"),
        Hostile(builtins.eval, f"open({str(marker)!r}, 'w')"),
        Hostile(subprocess.check_call, ["touch", str(marker)]),
        Hostile(getattr, Hostile(os.mkdir, str(marker)), "a"),
    ]
    for thing in objects:
        for state in (thing, {"search": thing}, {"search": {"weights": [thing]}}, {"settings": {(1, thing): 0}}):
            for archive in (True, False):
                buffer = io.BytesIO()
                torch.save(state, buffer, _use_new_zipfile_serialization=archive)
                yield buffer.getvalue()
            for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
                yield pickle.dumps(state, protocol)


def refusal(call):
    """The words with which a call refuses a file, None if it takes it. Foreign errors are let through."""
    try:
        call()
    except ValueError as error:
        if type(error) not in (ValueError, DamagedCheckpoint):
            raise
        return str(error)
    return None


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def files(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# load_state: the one reader of torch files


STATE = {
    "search": {"weights": {"model": {"0.weight": torch.ones(2, 3)}, "steps": 7}, "theta": [torch.zeros(3)]},
    "settings": {"strategy": "advantage", "seed": 3, "rates": (0.1, None, True)},
}


def test_a_damaged_state_is_named_or_still_a_state(tmp_path):
    path, read = tmp_path / "state.pt", 0
    for version in damaged(to_bytes(STATE), 1400):
        path.write_bytes(version)
        words = refusal(partial(load_state, path))
        assert words is None or (words.startswith(str(path)) and words.endswith("remove it."))
        read += words is None
    assert read < 200  # a few, such as those with another number in a tensor


def test_a_state_is_not_executed(tmp_path):
    path = tmp_path / "state.pt"
    for content in hostile_files(tmp_path / "executed"):
        path.write_bytes(content)
        assert refusal(partial(load_state, path)).startswith(str(path))
    assert not (tmp_path / "executed").exists()


# Checkpoints: the one reader of manifests


@pytest.fixture
def two_states(tmp_path):
    """A folder with the states of steps 1 and 2, and their data files."""
    for step in (1, 2):
        Checkpoints(tmp_path).save(STATE | {"step": step}, step)
    return tmp_path, sorted(tmp_path.glob("*.pt"))


@pytest.mark.parametrize("suffix", [".pt", ".json"])
def test_damage_costs_one_state_and_is_named(two_states, suffix):
    folder, (_, newest) = two_states
    path = newest.with_suffix(suffix)
    whole = path.read_bytes()
    for version in damaged(whole, 350, seed=1):
        path.write_bytes(version)
        states = []
        if suffix == ".json" and as_json(version) == as_json(whole):  # other spaces, which say the same
            continue
        with pytest.warns(UserWarning, match=rf"^{path.with_suffix('')}\.(pt|json) is .*an earlier checkpoint"):
            assert Checkpoints(folder).resume(states.append)
        assert [state["step"] for state in states] == [1]


def as_json(content):
    with suppress(ValueError, RecursionError):
        return json.loads(content)
    return None


@pytest.mark.parametrize("suffix", [".pt", ".json"])
def test_where_all_states_are_damaged_nothing_is_loaded_and_nothing_changed(two_states, suffix):
    folder, data = two_states
    old, new = (path.with_suffix(suffix) for path in data)
    whole = new.read_bytes()
    for version in damaged(whole, 140, seed=2):
        if suffix == ".json" and as_json(version) == as_json(whole):
            continue
        old.write_bytes(version)
        new.write_bytes(version)
        before = files(folder)
        words = refusal(partial(Checkpoints(folder).resume, pytest.fail))
        assert str(old.with_suffix("")) in words
        assert str(new.with_suffix("")) in words
        assert files(folder) == before


def test_a_manifest_of_another_form_costs_one_state(two_states):
    folder, (_, newest) = two_states
    path = newest.with_suffix(".json")
    for description, wrong in ill_formed(json.loads(path.read_text())):
        path.write_text(json.dumps(wrong))
        states = []
        with pytest.warns(UserWarning, match=rf"^{path.with_suffix('')}\.(pt|json) is .*an earlier checkpoint"):
            Checkpoints(folder).resume(states.append)
        assert [state["step"] for state in states] == [1], description


# Search.restore: states that are read, and do not fit


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(2, 2),
        nn.BatchNorm1d(2),
        Choice({"linear": nn.Linear(2, 2), "skip": nn.Identity(), "zero": Zero()}, name="edge"),
    )


def task():
    x = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
    return Task([x[:4], x[4:]], [x], lambda model, batch: F.mse_loss(model(batch), batch.flip(1)))


def search(folder, strategy="advantage", epochs=2):
    made = Search(network(), strategy, weight_optimizer=SGD)
    return made, partial(made.run, task(), epochs=epochs, folder=folder, resume=True)


def only_first_checkpoint(folder):
    """Remove the others, so that there are steps left which could go wrong."""
    first, *others = sorted(folder.glob("checkpoint-*.pt"))
    for path in others:
        path.unlink()
        path.with_suffix(".json").unlink()
    return first


@pytest.fixture(params=["advantage", "enas"])
def searched(request, tmp_path):
    """The folder of a search, its strategy, and its first checkpoint."""
    search(tmp_path, request.param)[1]()
    return tmp_path, request.param, only_first_checkpoint(tmp_path)


def assert_refused(run, made, folder, *, naming):
    """Refused with a message that names a file, and nothing is changed: neither the search nor its folder."""
    state, before = copy.deepcopy(made.state()), files(folder)
    assert str(naming) in (refusal(run) or "")
    assert files(folder) == before
    assert same(made.state(), state)


@pytest.mark.parametrize("strategy", ["advantage", "enas"])
def test_a_search_refuses_a_state_of_another_form(tmp_path, strategy):
    search(tmp_path, strategy)[1]()
    state = load_state(only_first_checkpoint(tmp_path))["work"]["search"]
    made, _ = search(tmp_path, strategy)
    before = copy.deepcopy(made.state())
    for description, wrong in ill_formed(state):
        assert refusal(partial(made.restore, wrong)), description
        assert same(made.state(), before), description
    made.restore(state)
    assert made.weight_steps == 2


@pytest.mark.parametrize("part", ["settings", "data", "lines"])
def test_a_run_refuses_a_checkpoint_of_another_form(searched, part):
    folder, strategy, path = searched
    made, run = search(folder, strategy)
    state = load_state(path)
    inside = state["work"] if part in state["work"] else state
    rest = {key: value for key, value in inside.items() if key != part}
    for description, wrong in ill_formed({part: inside[part]}):
        seal(path, to_bytes(state | {"work": rest | wrong} if inside is state["work"] else rest | wrong))
        try:
            assert_refused(run, made, folder, naming=path)
        except BaseException as error:
            error.add_note(description)
            raise
    seal(path, to_bytes(state))
    run()
    assert made.weight_steps == 4


def test_damage_that_torch_does_not_see_is_refused_or_resumed_from(searched):
    """Under a manifest that fits."""
    folder, strategy, path = searched
    whole, journal = path.read_bytes(), (folder / "metrics.jsonl").read_bytes()
    for version in damaged(whole, 140, seed=3):
        path.write_bytes(version)
        if refusal(partial(load_state, path)):
            continue
        seal(path, version)
        with suppress(NonFiniteLoss):  # another number in a tensor
            assert str(path) in (refusal(search(folder, strategy)[1]) or str(path))
        only_first_checkpoint(folder)
        (folder / "metrics.jsonl").write_bytes(journal)


def test_a_search_resumes_from_the_checkpoint_before_a_damaged_one(tmp_path):
    search(tmp_path)[1]()
    expected = (tmp_path / "metrics.jsonl").read_bytes()
    newest = max(tmp_path.glob("checkpoint-*.pt"))
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.warns(UserWarning, match=rf"{newest.name} is damaged.*Resuming from an earlier checkpoint"):
        search(tmp_path)[1]()
    assert (tmp_path / "metrics.jsonl").read_bytes() == expected


def test_a_search_whose_checkpoints_are_all_damaged_or_hostile_is_not_started_over(tmp_path):
    search(tmp_path)[1]()
    made, run = search(tmp_path)
    state = load_state(min(tmp_path.glob("checkpoint-*.pt")))
    for content in (
        b"rubbish",
        to_bytes(state | {"work": state["work"] | {"search": {"weights": {}, "architecture": {}}}}),
        to_bytes({"search": Hostile(os.mkdir, str(tmp_path / "executed"))}),
    ):
        for path in tmp_path.glob("checkpoint-*.pt"):
            seal(path, content)
        assert_refused(run, made, tmp_path, naming=max(tmp_path.glob("checkpoint-*.pt")))
    assert not (tmp_path / "executed").exists()
    Checkpoints(tmp_path).clear()
    run()  # without any checkpoint there is nothing to lose
    assert made.weight_steps == 4


# retrain


def train(folder):
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    return model, partial(retrain, model, task(), epochs=3, recipe=Recipe(SGD), folder=folder)


def test_a_training_refuses_a_checkpoint_of_another_form(tmp_path):
    train(tmp_path)[1]()
    path = only_first_checkpoint(tmp_path)
    state, (model, run) = load_state(path), train(tmp_path)
    weights = copy.deepcopy(model.state_dict())
    for description, wrong in [("damage", None), *ill_formed(state)]:
        seal(path, to_bytes(wrong))
        before = files(tmp_path)
        assert str(path) in (refusal(run) or ""), description
        assert files(tmp_path) == before
        assert same(dict(model.state_dict()), dict(weights)), description


# Studies


DIGITS = OwnNetworkStudy(OwnNetworkSettings(MAKE_SEARCH, {"task": "digits"}, epochs=4, warmup=2, retrain_epochs=2))


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """What a study saves at the end of its warm-up."""
    study = tmp_path_factory.mktemp("study")
    run_warmup(DIGITS, 0, study)
    return warmup_file(study, 0).read_bytes()


def assert_run_refused(study, path):
    before = files(study)
    assert str(path) in (refusal(partial(run_search, DIGITS, "advantage", 0, study)) or "")
    assert files(study) == before


def test_a_run_refuses_a_warm_up_that_is_none(warm, tmp_path):
    path = warmup_file(tmp_path, 0)
    path.parent.mkdir()
    path.write_bytes(warm)
    state = load_state(path)
    wrong = ({}, state | {"weights": {}}, state | {"data": None}, state | {"seconds": "many"})
    for content in (b"rubbish", warm[:-1], *map(to_bytes, wrong)):
        path.write_bytes(content)
        assert_run_refused(tmp_path, path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"records": None},
        {"lines": "many"},
        {"seconds": "many"},
        {"warmup_seconds": None},
        {"work": {}},
        {"data": []},
        {"credit": []},
        {"credit": {"strategy": "advantage"}},
        {"search": {"weights": {}, "architecture": {}}},
    ],
)
def test_a_run_of_a_study_refuses_a_checkpoint_of_another_form(tmp_path, wrong):
    """Which searches, clocks and records make up, next to the search itself."""
    own = run_folder(tmp_path, "advantage", 0)
    work = SearchRun(*DIGITS.begin("advantage", 0), DIGITS.length).state(own)
    inside = {key: value for key, value in wrong.items() if key in work}
    log = {"lines": 0, "records": 0, "seconds": 1.0, "warmup_seconds": 1.0}
    outside = {key: value for key, value in wrong.items() if key not in work}
    Checkpoints(own).save({"work": work | inside, **log} | outside, 1)
    (path,) = run_folder(tmp_path, "advantage", 0).glob("*.pt")
    assert_run_refused(tmp_path, path)


# Weights and architectures


def plain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))


@pytest.fixture(params=["weights.safetensors", "weights.pt"])
def exported(request, tmp_path, monkeypatch):
    """A file of weights, of either kind."""
    if request.param == "weights.pt":
        torch.save(dict(plain().state_dict()), tmp_path / request.param)
    else:
        export(plain(), (torch.zeros(2, 2),), tmp_path, "plain")
    return tmp_path / request.param


def try_to_load(path):
    """Whether a file of weights is taken; if not, the module is as it was."""
    module = plain()
    before = copy.deepcopy(module.state_dict())
    words = refusal(partial(load_plain, module, path.parent))
    if words is None:
        return True
    assert str(path) in words
    assert same(dict(module.state_dict()), dict(before))
    return False


def test_damaged_weights_are_named_or_still_weights(exported):
    assert try_to_load(exported)
    taken = 0
    for version in damaged(exported.read_bytes(), 420):
        exported.write_bytes(version)
        taken += try_to_load(exported)
    assert taken < 210  # those with another number in a tensor


def test_a_file_of_weights_is_not_executed(tmp_path):
    for content in hostile_files(tmp_path / "executed"):
        (tmp_path / "weights.pt").write_bytes(content)
        assert not try_to_load(tmp_path / "weights.pt")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "wrong",
    [{1: torch.zeros(1), "a": torch.zeros(1)}, {"0.bias": torch.zeros(3).to_sparse()}, {"0.bias": "text"}, []],
)
def test_weights_of_another_form_are_refused(tmp_path, wrong):
    whole = dict(plain().state_dict())
    torch.save(whole | wrong if isinstance(wrong, dict) else wrong, tmp_path / "weights.pt")
    assert not try_to_load(tmp_path / "weights.pt")


def test_a_damaged_architecture_is_refused_or_still_an_architecture():
    whole = Architecture({"edge": "conv", "node": "größer"}).to_json().encode()
    for version in damaged(whole, 700):
        words = refusal(partial(Architecture.from_json, version.decode(errors="replace")))
        assert words is None or "An architecture must be a JSON object" in words


# Texts of a study


CELL = {"0->1": "conv", "0->2": "skip"}
BEST = {"architecture": CELL, "loss": 0.5}
RECORD = {
    "epoch": 2.0,
    "step": 20,
    "entropy": 0.5,
    "probabilities": {"0->1": {"conv": 0.5, "skip": 0.5}},
    "loss": 1.5,
}
RESULT = {"strategy": "advantage", "seed": 0, "seconds": 2.5, "warmup_seconds": 1.0, "saved_bytes": 1000}
ANSWERS = {"argmax": CELL, "process_best": BEST}


@pytest.fixture
def study(tmp_path):
    """A folder with one finished run."""
    claim_folder(tmp_path, DIGITS)
    run = run_folder(tmp_path, "advantage", 0)
    run.mkdir(parents=True)
    records = [RECORD | ANSWERS | {"process_best": None}, RECORD | ANSWERS | {"epoch": 3.0, "loss": 1.5}]
    (run / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (run / "timing.jsonl").write_text('{"epoch":2.0,"seconds":0.5}\n{"epoch":3.0,"seconds":1.5}\n')
    measures = [{"name": "test accuracy", "value": 90.0, "more_is_better": True}]
    evaluation = {"by": "argmax", "architecture": CELL, "measures": measures, "validation_score": 0.1}
    rest = {"provenance": {"machine": "one"}, "evaluation": {**evaluation, "parameters": 7, "best_epoch": 1}}
    (run / "result.json").write_text(json.dumps(RESULT | ANSWERS | rest))
    return tmp_path


def read_all(folder):
    """All readers of a study's texts."""
    claim_folder(folder, DIGITS)
    read_study(folder)
    read_results(folder)


@pytest.mark.parametrize("name", ["study.json", "result.json", "records.jsonl", "timing.jsonl"])
def test_a_damaged_text_of_a_study_is_named_or_still_one(study, name):
    (path,) = study.rglob(name)
    read_all(study)
    whole = path.read_bytes()
    for version in damaged(whole, 350):
        path.write_bytes(version)
        for read in (read_all, read_study, read_results):
            words = refusal(partial(read, study))
            assert words is None or str(study) in words
            assert words is None or words.endswith("."), "say what to do"


@pytest.mark.parametrize("name", ["study.json", "result.json"])
def test_a_text_of_another_form_is_named_or_still_one(study, name):
    (path,) = study.rglob(name)
    for _, wrong in ill_formed(json.loads(path.read_text())):
        path.write_text(json.dumps(wrong))
        for read in (read_all, read_study, read_results):
            words = refusal(partial(read, study))
            assert words is None or str(study) in words


@pytest.mark.parametrize("name", ["records.jsonl", "timing.jsonl"])
def test_a_line_of_another_form_is_named_or_still_one(study, name):
    (path,) = study.rglob(name)
    for _, wrong in ill_formed(json.loads(path.read_text().splitlines()[-1])):
        path.write_text(json.dumps(wrong) + "\n")
        words = refusal(partial(read_study, study))
        assert words is None or str(path) in words


def test_a_perplexity_of_another_form_is_named_or_still_one(study):
    (path,) = study.rglob("result.json")
    (study / "study.json").write_text('{"experiment": "ptb", "settings": {}}')
    numbers = {"valid_perplexity": 90.0, "test_perplexity": 88.0, "parameters": 7, "best_epoch": 3}
    evaluation = {"by": "argmax", "architecture": CELL, **numbers}
    for _, wrong in ill_formed(json.loads(path.read_text()) | {"evaluation": evaluation}):
        path.write_text(json.dumps(wrong))
        words = refusal(partial(read_study, study))
        assert words is None or str(path) in words
