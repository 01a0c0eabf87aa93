"""Optimisers, precisions, averages and compiled modules as people bring them."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from advnas import Choice, NonFiniteLoss, Search, StopSearch, Task
from advnas.search import Callback, Ema
from advnas.search.precision import Precision

SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9)


def network():
    torch.manual_seed(3)
    block = Choice({"skip": nn.Identity(), "relu": nn.ReLU(), "linear": nn.Linear(8, 8)}, name="block")
    return nn.Sequential(nn.Linear(3, 8), block, nn.Linear(8, 1))


def task(batches=4):
    x = torch.randn(8 * batches, 3, generator=torch.Generator().manual_seed(0))
    data = list(zip(x.split(8), x.sum(1, keepdim=True).relu().split(8), strict=True))
    return Task(data, data, lambda model, batch: F.mse_loss(model(batch[0]), batch[1]))


def same_weights(one, other):
    return all(map(torch.equal, one.model.state_dict().values(), other.model.state_dict().values()))


class StopAt(Callback):
    def __init__(self, number):
        self.number = number

    def step(self, run, step):
        if step.phase == "weights" and step.number == self.number:
            raise StopSearch


# Optimisers


def test_a_ready_optimiser_is_as_good_as_a_function_that_makes_it():
    made, model = Search(network(), weight_optimizer=SGD), network()
    ready = Search(model, weight_optimizer=SGD(model.parameters()))
    for search in (made, ready):
        search.run(task(), epochs=2)
        assert isinstance(search.weight_optimizer, torch.optim.SGD)
    assert same_weights(made, ready)


def test_parameter_groups_keep_their_rates():
    model = network()
    groups = [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[2].parameters(), "lr": 0.1}]
    search = Search(model, "random", weight_optimizer=torch.optim.SGD(groups))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    search.run(task(), epochs=1)
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {"2.weight", "2.bias"}


def test_a_ready_optimiser_of_another_model_is_refused():
    with pytest.raises(ValueError, match="6 parameters of the given SGD are not those of the model"):
        Search(network(), weight_optimizer=SGD(network().parameters()))


def test_what_makes_no_optimiser_is_refused():
    with pytest.raises(TypeError, match="gave list"):
        Search(network(), weight_optimizer=list)


@pytest.mark.parametrize("given", ["adam", 0.05])
@pytest.mark.parametrize("name", ["weight_optimizer", "architecture_optimizer"])
def test_names_and_rates_are_no_optimisers(name, given):
    message = rf"{name} must be a function that makes .*, got {given!r}\. Write {name}=partial\(torch\.optim\.AdamW"
    with pytest.raises(TypeError, match=message):
        Search(network(), **{name: given})


def test_a_ready_optimiser_cannot_be_that_of_theta():
    model = network()
    with pytest.raises(TypeError, match=r"got a ready Adam .* Write .*=partial\(torch\.optim\.Adam,"):
        Search(model, architecture_optimizer=torch.optim.Adam(model.parameters()))


def test_an_optimiser_is_made_from_parameters_and_not_from_a_model():
    with pytest.raises(TypeError, match=r"looked for \.parameters in that list, as of a model"):
        Search(network(), weight_optimizer=lambda model: torch.optim.AdamW(model.parameters()))
    with pytest.raises(AttributeError, match="no attribute 'typo'"):
        Search(network(), weight_optimizer=lambda parameters: torch.typo)


def test_another_optimiser_like_a_ready_one_is_made_for_a_retraining():
    model = network()
    search = Search(model, weight_optimizer=torch.optim.AdamW(model.parameters(), lr=0.3, weight_decay=0.2))
    search.run(task(), epochs=1)
    other = search.make_weight_optimizer(list(network().parameters()))
    assert isinstance(other, torch.optim.AdamW)
    assert (other.defaults["lr"], other.defaults["weight_decay"]) == (0.3, 0.2)


def test_groups_cannot_be_guessed_for_a_retraining():
    model = network()
    ready = torch.optim.SGD([{"params": model[0].parameters()}, {"params": model[2].parameters()}], lr=0.1)
    with pytest.raises(ValueError, match="2 parameter groups"):
        Search(model, weight_optimizer=ready).make_weight_optimizer([nn.Parameter(torch.ones(1))])


def test_a_ready_optimiser_resumes_bit_for_bit(tmp_path):
    def made():
        model = network()
        return Search(model, weight_optimizer=torch.optim.AdamW(model.parameters(), lr=0.01))

    whole, stopped, resumed = made(), made(), made()
    whole.run(task(), epochs=3)
    stopped.run(task(), epochs=3, folder=tmp_path, callbacks=[StopAt(5)])
    resumed.run(task(), epochs=3, folder=tmp_path, resume=True)
    assert same_weights(whole, resumed)


# Precision


@pytest.mark.parametrize("precision", ["bf16", "bfloat16", "fp16"])
@pytest.mark.parametrize("schedule", ["alternate", "joint"])
def test_operations_run_in_the_precision_and_weights_do_not(precision, schedule):
    search, seen = Search(network(), precision=precision, schedule=schedule), set()
    search.model[2].register_forward_hook(lambda module, inputs, output: seen.add(output.dtype))
    search.run(task(), epochs=1)
    assert seen == {torch.float16 if precision == "fp16" else torch.bfloat16}
    assert {weight.dtype for weight in search.model.parameters()} == {torch.float32}


def test_precisions_are_close_to_each_other():
    reference = Search(network(), weight_optimizer=SGD)
    reference.run(task(), epochs=2)
    for precision in ("bf16", "fp16"):
        search = Search(network(), weight_optimizer=SGD, precision=precision)
        search.run(task(), epochs=2)
        for one, other in zip(search.model.parameters(), reference.model.parameters(), strict=True):
            torch.testing.assert_close(one, other, atol=0.05, rtol=0.05)


def tiny(model):
    """A loss whose gradient is below what float16 can hold, unless it is scaled."""
    return (model(torch.ones(4, 3)).float() * 1e-7).mean()


def test_gradients_that_float16_cannot_hold_are_scaled():
    scaled, plain = Search(network(), "random", weight_clip=None), Search(network(), "random", weight_clip=None)
    scaled.parent.precision = scaled.weights.precision = Precision("fp16")
    plain.weight_step(tiny)
    scaled.weight_step(tiny)
    assert scaled.weights.gradient_norm == pytest.approx(plain.weights.gradient_norm, rel=0.01)


@pytest.mark.parametrize("kind", ["weight_step", "architecture_step", "joint_step"])
def test_an_overflow_repeats_the_step_with_half_the_scale(kind):
    search = Search(network(), precision="fp16")

    def large(model):
        return (model(torch.ones(4, 3)) * 20).float().mean()

    getattr(search, kind)(large)
    scale = search.parent.precision.scale
    assert scale < 2**16
    assert (search.weight_steps, search.architecture_steps) == {
        "weight_step": (1, 0),
        "architecture_step": (0, 1),
        "joint_step": (1, 1),
    }[kind]


def test_a_loss_that_is_not_finite_is_told_after_all():
    search = Search(network(), precision="fp16")
    with pytest.raises(NonFiniteLoss):
        search.weight_step(lambda model: model(torch.ones(4, 3)).float().mean() * torch.inf)


@pytest.mark.parametrize("kind", ["weight_step", "architecture_step", "joint_step"])
def test_a_loss_that_is_not_a_number_leaves_the_scale_as_it_was(kind):
    search = Search(network(), precision="fp16")
    search.weight_step(lambda model: model(torch.ones(4, 3)).float().mean())
    before = search.parent.precision.state()
    with pytest.raises(NonFiniteLoss):
        getattr(search, kind)(lambda model: model(torch.ones(4, 3)).float().mean() * torch.nan)
    assert search.parent.precision.state() == before


def test_the_scale_survives_a_stop(tmp_path):
    whole, stopped, resumed = (Search(network(), weight_optimizer=SGD, precision="fp16") for _ in range(3))
    for search in (whole, stopped):
        search.parent.precision.scale = 2.0**10
    whole.run(task(), epochs=3)
    stopped.run(task(), epochs=3, folder=tmp_path, callbacks=[StopAt(5)])
    resumed.run(task(), epochs=3, folder=tmp_path, resume=True)
    assert resumed.parent.precision.scale == whole.parent.precision.scale
    assert same_weights(whole, resumed)


def test_the_scale_grows_after_many_good_steps():
    precision = Precision("fp16")
    for _ in range(2000):
        precision.succeed()
    assert precision.scale == 2.0**17


def test_another_precision_is_another_search(tmp_path):
    Search(network()).run(task(), epochs=1, folder=tmp_path)
    with pytest.raises(ValueError, match="precision is bf16 now and was None"):
        Search(network(), precision="bf16").run(task(), epochs=1, folder=tmp_path, resume=True)


def test_a_precision_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match="precision must be one of"):
        Search(network(), precision="int4")


# Averages


def test_an_average_follows_the_weights_that_are_trained():
    search, ema = Search(network(), weight_optimizer=SGD), Ema(0.5)
    expected = {name: value.detach().clone() for name, value in search.model.named_parameters()}

    class Follow(Callback):
        def step(self, run, step):
            if step.phase == "architecture":
                return
            for name, value in search.model.named_parameters():
                if not name.startswith("1.") or step.architecture["block"] == "linear":
                    expected[name] = 0.5 * expected[name] + 0.5 * value.detach()

    search.run(task(), epochs=2, callbacks=[Follow(), ema])
    now = {name: value.detach().clone() for name, value in search.model.named_parameters()}
    with ema.applied(search):
        for name, value in search.derive({"block": "linear"}).named_parameters():
            source = name if not name.startswith("1.") else f"1.candidates.2.{name[2:]}"
            torch.testing.assert_close(value, expected.get(source, expected.get(name)))
    assert all(torch.equal(value, now[name]) for name, value in search.model.named_parameters())


def test_an_average_survives_a_stop(tmp_path):
    searches, averages = [Search(network(), weight_optimizer=SGD) for _ in range(3)], [Ema(0.9) for _ in range(3)]
    searches[0].run(task(), epochs=3, callbacks=[averages[0]])
    searches[1].run(task(), epochs=3, callbacks=[averages[1], StopAt(5)], folder=tmp_path)
    searches[2].run(task(), epochs=3, callbacks=[averages[2]], folder=tmp_path, resume=True)
    for one, other in zip(
        averages[0].state()["average"].values(), averages[2].state()["average"].values(), strict=True
    ):
        assert torch.equal(one, other)


def test_a_callback_that_is_left_out_where_a_run_is_resumed_is_told(tmp_path):
    search = Search(network(), weight_optimizer=SGD)
    search.run(task(), epochs=3, callbacks=[Ema(), StopAt(5)], folder=tmp_path, patience=3)
    with pytest.warns(UserWarning, match="saved with callbacks that are not given now: Ema, Patience"):
        Search(network(), weight_optimizer=SGD).run(task(), epochs=3, folder=tmp_path, resume=True)


def test_an_average_begins_anew_with_another_search():
    ema, starts = Ema(0.9), []

    class Look(Callback):
        def start(self, run):
            starts.append([value.clone() for value in ema.state()["average"].values()])

    for number in range(2):
        search = Search(network(), weight_optimizer=SGD)
        before = [weight.detach().clone() for weight in search.model.parameters()]
        search.run(task(), epochs=1, callbacks=[ema, Look()])
        assert all(map(torch.equal, starts[number], before))


def test_a_restored_average_is_of_the_kind_of_the_weights():
    """Their type here, and their device where there is another one."""
    search, ema = Search(network(), weight_optimizer=SGD), Ema()
    search.run(task(), epochs=1, callbacks=[ema])
    saved, after = ema.state(), Ema()
    search.model.to(torch.float64)
    after.restore(saved)
    after.start(SimpleNamespace(search=search))
    for name, value in after.state()["average"].items():
        assert value.dtype == torch.float64
        assert torch.equal(value, saved["average"][name].double())


def test_an_average_of_weights_elsewhere_is_refused():
    with pytest.raises(ValueError, match="weights='resident'"):
        Search(network(), weights="host").run(task(), epochs=1, callbacks=[Ema()])


@pytest.mark.parametrize("decay", [0.0, 1.0, 2])
def test_a_decay_lies_between_0_and_1(decay):
    with pytest.raises(ValueError, match="between 0 and 1"):
        Ema(decay)


# Compiled modules


def test_a_compiled_parent_warns_and_compiled_candidates_do_not():
    with pytest.warns(UserWarning, match="The model was given to torch.compile"):
        Search(torch.compile(network(), backend="eager"))
    inside = nn.Sequential(torch.compile(network(), backend="eager"))
    with pytest.warns(UserWarning, match="^0 was given to torch.compile"):
        Search(inside)
    model = network()
    model.compile(backend="eager")
    with pytest.warns(UserWarning, match="Compile the candidates instead"):
        Search(model)


def test_compiled_candidates_are_searched_and_derived():
    candidates = {"a": torch.compile(nn.Linear(3, 3), backend="eager"), "b": nn.Identity()}
    search = Search(nn.Sequential(Choice(candidates, name="x"), nn.Linear(3, 1)))
    search.run(task(), epochs=1)
    plain = search.derive({"x": "a"})
    with search.space.running({"x": "a"}):
        torch.testing.assert_close(plain(torch.ones(2, 3)), search.model(torch.ones(2, 3)))
