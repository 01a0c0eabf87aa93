import json
import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from advnas import Architecture, Choice, Search, SearchSpace
from advnas.answers.batch_norm import reestimate_batch_norm, track_norms
from advnas.export import export, load_plain
from advnas.randomness import generator
from advnas.spaces.nasbench201 import ConvolutionCellNetwork
from advnas.spaces.recurrent_cell import RecurrentCellNetwork

CELL = Architecture(
    {
        "0->1": "nor_conv_3x3",
        "0->2": "skip_connect",
        "1->2": "nor_conv_1x1",
        "0->3": "avg_pool_3x3",
        "1->3": "nor_conv_3x3",
        "2->3": "skip_connect",
    }
)


def derived_convolution_cells():
    search = Search(ConvolutionCellNetwork(channels=4, cells=1, classes=3))
    module = search.derive(CELL)
    reestimate_batch_norm(module, [torch.randn(8, 3, 8, 8)], lambda module, x: module(x))
    # With frozen weights behind trainable ones, its convolutions would run as functions of their own.
    module.body.requires_grad_(False)
    return module


def derived_recurrent_cell():
    space = SearchSpace(RecurrentCellNetwork(11, hidden=6, nodes=2))
    return space.derive(Architecture({"0->1": "tanh", "0->2": "zero", "1->2": "identity"}))


def nested():
    return nn.Sequential(
        nn.Linear(3, 4),
        Choice(
            {
                "deep": nn.Sequential(
                    nn.Linear(4, 4), Choice({"relu": nn.ReLU(), "tanh": nn.Tanh()}, name="inner")
                ),
                "skip": nn.Identity(),
            },
            name="outer",
        ),
    )


NESTED = Architecture({"outer": "deep", "inner": "tanh"})


class TransformerBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.before = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, dropout=0.1)
        self.mlp = Choice(
            {
                "wide": nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)),
                "narrow": nn.Sequential(nn.Linear(8, 2), nn.GELU(), nn.Linear(2, 8)),
            },
            name="mlp",
        )

    def forward(self, x):
        y = self.before(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(x)


def derived_transformer_block():
    return SearchSpace(TransformerBlock()).derive(Architecture({"mlp": "wide"}))


@dataclass
class Case:
    make: object
    inputs: object
    batch_dims: tuple[int, ...] | None = None


def random_like(*shape):
    return torch.randn(*shape, generator=generator(3))


CASES = {
    "convolution_cells": Case(derived_convolution_cells, lambda rows: (random_like(rows, 3, 8, 8),)),
    "recurrent_cell": Case(
        derived_recurrent_cell,
        lambda rows: (torch.randint(11, (3, rows), generator=generator(4)), random_like(rows, 6)),
        batch_dims=(1, 0),
    ),
    "nested_choices": Case(lambda: SearchSpace(nested()).derive(NESTED), lambda rows: (random_like(rows, 3),)),
    "transformer_block": Case(derived_transformer_block, lambda rows: (random_like(rows, 5, 8),)),
}

# What a reader has who never heard of advnas.
READERS = {
    "pt2": """
import sys
sys.modules["advnas"] = None
import json, torch
import numpy as np
differences = {}
for folder in sys.argv[1:]:
    data = np.load(f"{folder}/check.npz")
    inputs = [torch.from_numpy(data[name]) for name in data if name.startswith("input")]
    outputs = torch.export.load(f"{folder}/model.pt2").module()(*inputs)
    first = outputs[0] if isinstance(outputs, tuple) else outputs
    differences[folder] = float(np.abs(first.detach().numpy() - data["output"]).max())
print(json.dumps(differences))
""",
    "onnx": """
import sys
sys.modules["advnas"] = sys.modules["torch"] = None
import json, onnxruntime
import numpy as np
differences = {}
for folder in sys.argv[1:]:
    data = np.load(f"{folder}/check.npz")
    session = onnxruntime.InferenceSession(f"{folder}/model.onnx", providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]
    inputs = {name: data[f"input{index}"] for index, name in enumerate(names)}
    differences[folder] = float(np.abs(session.run(None, inputs)[0] - data["output"]).max())
print(json.dumps(differences))
""",
}


@pytest.mark.parametrize("to", ["pt2", "onnx"])
def test_derived_modules_run_for_any_batch_size_where_there_is_no_advnas(to, tmp_path):
    for name, case in CASES.items():
        module = case.make().train()
        exported = export(module, case.inputs(2), tmp_path / name, to, batch_dims=case.batch_dims)
        assert exported.path == tmp_path / name / f"model.{to}"
        assert exported.dynamic_batch
        assert exported.difference < 1e-5
        assert all(part.training for part in module.modules())
        output = module.eval()(*case.inputs(5))
        arrays = {f"input{index}": tensor.numpy() for index, tensor in enumerate(case.inputs(5))}
        arrays["output"] = (output[0] if isinstance(output, tuple) else output).detach().numpy()
        np.savez(tmp_path / name / "check.npz", **arrays)
    folders = [str(tmp_path / name) for name in CASES]
    reader = subprocess.run(
        [sys.executable, "-c", READERS[to], *folders], check=False, capture_output=True, text=True, cwd=tmp_path
    )
    assert reader.returncode == 0, reader.stderr
    differences = json.loads(reader.stdout)
    assert list(differences) == folders
    assert max(differences.values()) < 1e-5


def small(seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


X = (torch.ones(1, 3),)


@pytest.mark.parametrize("to", ["plain", "pt2"])
def test_an_example_of_one_row_is_enough_for_any_batch_size(to, tmp_path):
    assert export(small(), X, tmp_path, to).dynamic_batch


class FixedBatch(nn.Module):
    def forward(self, x):
        return x.reshape(2, 3).sum(1)


def test_a_module_that_takes_one_batch_size_only_is_exported_for_that_one(tmp_path):
    assert not export(FixedBatch(), (torch.randn(2, 3),), tmp_path, "pt2").dynamic_batch


def test_inputs_without_a_batch_dimension_stay_as_they_are(tmp_path):
    class Masked(nn.Module):
        def forward(self, x, mask):
            return x @ mask.to(x.dtype)

    example = (torch.randn(2, 3), torch.ones(3, 3, dtype=torch.bool).tril())
    assert export(Masked(), example, tmp_path, "pt2", batch_dims=(0, None)).dynamic_batch
    with pytest.raises(ValueError, match=r"\[2, 3\], \[3, 3\] do not agree .* Say for every input"):
        export(Masked(), example, tmp_path, "pt2")


class Tabular(nn.Module):
    """Two columns of categories, the second of fewer, and a text with its length."""

    def __init__(self):
        super().__init__()
        self.wide, self.narrow, self.token = nn.Embedding(100, 4), nn.Embedding(2, 4), nn.Embedding(100, 4)

    def forward(self, columns, tokens, length):
        words = self.token(tokens) * (torch.arange(tokens.shape[1]) < length.unsqueeze(1)).unsqueeze(-1)
        return self.wide(columns[:, 0]) + self.narrow(columns[:, 1]) + words.sum(1) / length.unsqueeze(1)


@pytest.mark.parametrize("to", ["plain", "pt2"])
def test_rows_of_whole_numbers_stay_whole_and_fit_each_other(to, tmp_path):
    example = (
        torch.tensor([[99, 0], [98, 1], [97, 0]]),
        torch.tensor([[1, 2, 3], [4, 5, 0], [6, 0, 0]]),
        torch.tensor([3, 2, 1]),
    )
    assert export(Tabular(), example, tmp_path, to).dynamic_batch


class Counted(nn.Module):
    """A text has as many words as its length says."""

    def forward(self, tokens, length):
        if not torch.equal(tokens.ne(0).sum(1), length):
            raise AssertionError("tokens and lengths of different rows")
        return tokens.sum(1) / length


def test_all_inputs_are_made_of_the_same_rows(tmp_path):
    example = (torch.tensor([[1, 2, 3], [4, 5, 0], [6, 0, 0]]), torch.tensor([3, 2, 1]))
    assert export(Counted(), example, tmp_path, "plain").dynamic_batch


def test_a_module_that_fails_on_other_numbers_is_told(tmp_path):
    class Cast(nn.Module):
        def forward(self, codes):
            return torch.arange(3.0)[codes.long()]

    with pytest.raises(ValueError, match=r"Cast fails on other numbers like .* need an integer type"):
        export(Cast(), (torch.tensor([0.0, 1.0, 2.0]).repeat(99),), tmp_path, "plain")
    assert not list(tmp_path.iterdir())


class Random(nn.Module):
    def forward(self, x):
        return x + torch.rand_like(x)


@pytest.mark.parametrize("to", ["plain", "pt2"])
def test_what_does_not_compute_the_same_is_not_written(to, tmp_path):
    with pytest.raises(ValueError, match=r"Random as .* is off by .* Nothing was written"):
        export(Random(), X, tmp_path, to, architecture=NESTED)
    assert list(tmp_path.iterdir()) == []


def test_the_tolerance_is_in_units_of_the_output(tmp_path):
    class Noisy(nn.Module):
        def forward(self, x):
            return 1e6 * (1 + x) + torch.rand_like(x)

    assert 0 < export(Noisy(), X, tmp_path, "plain").difference < 1
    with pytest.raises(ValueError, match="is off by"):
        export(Noisy(), X, tmp_path, "plain", tolerance=1e-8)


def test_what_cannot_be_traced_is_refused_with_the_reason(tmp_path):
    class Branching(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(ValueError, match=r"Branching cannot be written as model.pt2: .*data-dependent"):
        export(Branching(), X, tmp_path, "pt2")


def test_what_the_reader_cannot_run_is_refused_with_the_reason(tmp_path):
    with pytest.raises(ValueError, match=r"Linear cannot be run as model.onnx, and nothing was written: "):
        export(nn.Linear(3, 4).bfloat16(), (torch.ones(2, 3, dtype=torch.bfloat16),), tmp_path, "onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_export_leaves_an_earlier_one(tmp_path):
    path = export(small(), X, tmp_path, "pt2").path
    content = path.read_bytes()
    with pytest.raises(ValueError):
        export(Random(), X, tmp_path, "pt2")
    assert path.read_bytes() == content


def test_a_module_with_open_decisions_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"still holds a Choice at '1'.*export\(search.derive\(architecture\)"):
        export(nested(), X, tmp_path, "plain")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"to": "tflite"}, ValueError, "'plain', 'pt2' or 'onnx', got 'tflite'"),
        ({"example": torch.ones(1, 3)}, TypeError, r"tuple of tensors, got Tensor. Write for example \(x,\)"),
        ({"example": ({"x": torch.ones(1, 3)},)}, TypeError, r"tuple of tensors, got a tuple of dict\. Write"),
        ({"batch_dims": (0, 0)}, ValueError, r"one entry for each of 1 inputs, got \(0, 0\)"),
        ({"batch_dims": (2,)}, ValueError, r"says 2 of an input with shape \[1, 3\]"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(tmp_path, change, error, message):
    with pytest.raises(error, match=message):
        export(**{"module": small(), "example": X, "folder": tmp_path, "to": "plain"} | change)


@pytest.mark.parametrize("package", ["onnx", "onnxruntime", "onnxscript"])
def test_a_missing_package_is_named_with_what_installs_it(tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"needs the package {package}\. Run pip install 'advnas\[onnx\]'"):
        export(small(), X, tmp_path, "onnx")


@pytest.fixture(params=["weights.safetensors", "weights.pt"])
def weight_file(request, monkeypatch):
    """Both ways to write weights; the second where safetensors is not installed."""
    if request.param == "weights.pt":
        monkeypatch.setitem(sys.modules, "safetensors", None)
        monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    return request.param


def same_weights(one, other):
    return all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))


def test_plain_weights_come_back_bit_for_bit_and_with_their_architecture(tmp_path, weight_file):
    module = SearchSpace(nested()).derive(NESTED)
    exported = export(module, X, tmp_path, "plain", architecture=NESTED)
    assert exported.difference == 0
    assert {path.name for path in tmp_path.iterdir()} == {weight_file, "architecture.json"}
    architecture = Architecture.from_json((tmp_path / "architecture.json").read_text())
    again = SearchSpace(nested()).derive(architecture, fresh=1)
    load_plain(again, tmp_path)
    assert same_weights(again, module)


def test_weights_of_settled_norms_fit_into_a_derived_module_that_tracks(tmp_path):
    module = derived_convolution_cells()
    export(module, (torch.randn(2, 3, 8, 8),), tmp_path, "plain")
    search = Search(ConvolutionCellNetwork(channels=4, cells=1, classes=3))
    again = search.derive(CELL)
    with pytest.raises(ValueError, match=r"the module has no .*running_mean.*track_norms\(module\)"):
        load_plain(again, tmp_path)
    track_norms(again)
    load_plain(again, tmp_path)
    x = torch.randn(1, 3, 8, 8)
    assert torch.equal(again.eval()(x), module.eval()(x))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.decoder = nn.Embedding(5000, 4), nn.Linear(4, 5000, bias=False)
        self.decoder.weight = self.embedding.weight

    def forward(self, tokens):
        return self.decoder(self.embedding(tokens))


def test_a_shared_tensor_is_written_once_and_stays_shared(tmp_path, weight_file):
    module, again = Tied(), Tied()
    path = export(module, (torch.arange(6),), tmp_path, "plain").path
    assert path.stat().st_size < 1.5 * module.embedding.weight.nbytes
    load_plain(again, tmp_path)
    assert same_weights(again, module)
    assert again.decoder.weight is again.embedding.weight


def test_safetensors_itself_reads_the_weights(tmp_path):
    from safetensors.torch import load_model

    module, again = Tied(), Tied()
    load_model(again, export(module, (torch.arange(6),), tmp_path, "plain").path)
    assert same_weights(again, module)


def test_another_kind_of_weights_from_before_does_not_stay(tmp_path, monkeypatch):
    export(small(0), X, tmp_path, "plain")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "safetensors", None)
        export(small(1), X, tmp_path, "plain")
    again = small(2)
    load_plain(again, tmp_path)
    assert same_weights(again, small(1))


def test_weights_that_do_not_fit_are_all_named_and_the_module_is_left_alone(tmp_path, weight_file):
    export(small(), X, tmp_path, "plain")
    other = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5, bias=False), nn.Linear(5, 1).double())
    before = [weight.clone() for weight in other.parameters()]
    with pytest.raises(ValueError) as refusal:
        load_plain(other, tmp_path)
    for problem in (
        "the file has no 3.bias, 3.weight",
        "the module has no 2.bias",
        "2.weight is float32 [2, 4] in the file and float32 [5, 4] in the module",
    ):
        assert problem in str(refusal.value)
    assert all(map(torch.equal, other.parameters(), before))


def test_weights_are_not_cast_silently(tmp_path):
    export(small(), X, tmp_path, "plain")
    with pytest.raises(ValueError, match=r"0.weight is float32 \[4, 3\] in the file and float64 \[4, 3\]"):
        load_plain(small().double(), tmp_path)


@pytest.mark.parametrize("length", [0, 5, 100, -10])
def test_a_truncated_file_is_refused(tmp_path, weight_file, length):
    path = export(small(), X, tmp_path, "plain").path
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ValueError, match=f"{weight_file} is damaged"):
        load_plain(small(), tmp_path)


class Trap:
    """A pickle that runs code of its own when it is read."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("file", ["weights.pt", "weights.safetensors"])
@pytest.mark.parametrize("write", [torch.save, lambda trap, path: path.write_bytes(pickle.dumps(trap))])
def test_a_hostile_file_executes_nothing(tmp_path, file, write):
    mark = tmp_path / "executed"
    write({"0.weight": Trap(mark)}, tmp_path / file)
    with pytest.raises(ValueError, match="is damaged, or no file of weights"):
        load_plain(small(), tmp_path)
    assert not mark.exists()
    pickle.loads(pickle.dumps(Trap(mark)))
    assert mark.exists()  # so the trap was a real one


def test_a_file_that_holds_something_else_is_refused(tmp_path):
    torch.save([1, 2], tmp_path / "weights.pt")
    with pytest.raises(ValueError, match="must hold tensors by name"):
        load_plain(small(), tmp_path)


def test_a_folder_without_weights_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no weights.safetensors and no weights.pt"):
        load_plain(small(), tmp_path)


def test_a_state_that_is_not_tensors_is_refused(tmp_path):
    class Versioned(nn.Linear):
        def get_extra_state(self):
            return {"version": 2}

    with pytest.raises(ValueError, match=r"keeps dict under '_extra_state' .* export to 'pt2'"):
        export(Versioned(3, 4), X, tmp_path, "plain")
