import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from advnas import Choice, NonFiniteLoss, Search, Task
from advnas.retrain import Epoch, Recipe, retrain

SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9)


def loss(model, batch):
    x, y = batch
    return F.mse_loss(model(x), y)


def task(shuffle=True):
    random = torch.Generator().manual_seed(0)
    x = torch.randn(32, 3, generator=random)
    y = x.sum(1, keepdim=True)
    loader = DataLoader(TensorDataset(x[:24], y[:24]), batch_size=8, shuffle=shuffle)
    return Task(loader, [(x[24:], y[24:])], loss)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 1))


def weights(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_training_lowers_the_validation_loss():
    outcome = retrain(network(), task(), epochs=20, recipe=Recipe(SGD))
    assert [epoch.number for epoch in outcome.history] == list(range(1, 21))
    assert outcome.best.score < 0.3 * outcome.history[0].score


class Stopped(Exception):
    pass


def stop_after(number, epoch):
    if epoch.number == number:
        raise Stopped


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("stop", [1, 3, 5])
def test_a_stopped_training_goes_on_bit_for_bit_also_with_a_shuffling_loader_and_dropout(
    tmp_path, stop, accumulate
):
    recipe = Recipe(SGD, accumulate=accumulate)
    whole = retrain(network(), task(), epochs=6, recipe=recipe)
    stopping = partial(stop_after, stop)
    with pytest.raises(Stopped):
        retrain(network(), task(), epochs=6, recipe=recipe, folder=tmp_path, on_epoch=stopping)
    torch.manual_seed(99)  # whatever happened in between
    resumed = retrain(network(), task(), epochs=6, recipe=recipe, folder=tmp_path)
    assert resumed.history == whole.history
    assert all(map(torch.equal, weights(resumed.model), weights(whole.model)))


def stopped_training(folder, **recipe):
    with pytest.raises(Stopped):
        retrain(network(), task(), epochs=4, recipe=Recipe(SGD, **recipe), folder=folder, on_epoch=stop_after_two)


def stop_after_two(epoch):
    stop_after(2, epoch)


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        ({}, {"precision": "bf16"}, "precision is bfloat16 now and was float32"),
        ({"precision": "bfloat16"}, {}, "precision is float32 now and was bfloat16"),
        ({"precision": "fp16"}, {}, "precision is float32 now and was float16"),
        ({}, {"accumulate": 3}, "accumulate is 3 now and was 1"),
        ({"accumulate": 2}, {}, "accumulate is 1 now and was 2"),
        ({}, {"annealing": lambda progress: 1.0}, r"annealing is \[1.0, 1.0, 1.0, 1.0\] now and was \[1.0, 0.85"),
    ],
)
def test_a_training_goes_on_with_the_same_precision_accumulation_and_annealing_alone(tmp_path, before, now, told):
    stopped_training(tmp_path, **before)
    with pytest.raises(ValueError, match=told):
        retrain(network(), task(), epochs=4, recipe=Recipe(SGD, **now), folder=tmp_path)


def plain():
    torch.manual_seed(0)
    return nn.Linear(3, 1)


def test_accumulated_minibatches_train_like_one_large_minibatch():
    x = torch.randn(32, 3, generator=torch.Generator().manual_seed(0))
    y = x.sum(1, keepdim=True)
    parts, whole = (list(zip(x.split(size), y.split(size), strict=True)) for size in (8, 16))
    one = retrain(plain(), Task(whole, whole, loss), epochs=2, recipe=Recipe(SGD))
    other = retrain(plain(), Task(parts, whole, loss), epochs=2, recipe=Recipe(SGD, accumulate=2))
    torch.testing.assert_close(weights(other.model), weights(one.model))
    assert [epoch.training_loss for epoch in other.history] == pytest.approx(
        [epoch.training_loss for epoch in one.history]
    )


def test_the_last_step_of_an_epoch_takes_the_minibatches_that_are_left():
    steps = []

    class Counted(torch.optim.SGD):
        def step(self, closure=None):
            steps.append(self.param_groups[0]["lr"])
            return super().step(closure)

    recipe = Recipe(partial(Counted, lr=1.0), lambda progress: 1 - progress, accumulate=2)
    retrain(plain(), task(), epochs=2, recipe=recipe)  # of three minibatches each
    assert steps == pytest.approx([1, 3 / 4, 2 / 4, 1 / 4])


def test_a_device_is_that_of_model_and_minibatches():
    """The meta device has shapes alone, so that the loss cannot be computed there."""
    seen = []

    def look(model, batch):
        seen.append({batch[0].device.type, next(model.parameters()).device.type})
        return loss(model, batch)

    with pytest.raises(RuntimeError, match="meta"):
        retrain(plain(), Task(task().training, [], look), epochs=1, recipe=Recipe(SGD, device="meta"))
    assert seen == [{"meta"}]
    with pytest.raises(ValueError, match=r"The device 'gpu' cannot be used here.*Write cpu"):
        retrain(plain(), task(), epochs=1, recipe=Recipe(SGD, device="gpu"))


def test_two_names_of_a_precision_are_one(tmp_path):
    stopped_training(tmp_path, precision="bf16")
    recipe = Recipe(SGD, precision="bfloat16")
    assert len(retrain(network(), task(), epochs=4, recipe=recipe, folder=tmp_path).history) == 4


def test_a_step_repeated_for_an_overflow_moves_running_statistics_once():
    torch.manual_seed(0)
    model, passes = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)), []

    def large(model, batch):
        if model.training:
            passes.append(model[1].num_batches_tracked.item())
        return 1e4 * loss(model, batch)

    recipe = Recipe(partial(torch.optim.SGD, lr=1e-6), precision="fp16")
    retrain(model, Task(task().training, task().validation, large), epochs=1, recipe=recipe)
    assert len(passes) > 3  # some were repeated
    assert model[1].num_batches_tracked == 3


def test_the_model_ends_in_evaluation_mode_also_where_nothing_was_left_to_train(tmp_path):
    for _ in range(2):
        assert not retrain(network(), task(), epochs=1, recipe=Recipe(SGD), folder=tmp_path).model.training
    scored = Recipe(SGD, score=lambda model: 1.0)
    assert not retrain(network(), task(), epochs=1, recipe=scored).model.training


def test_the_model_ends_with_the_weights_of_its_best_epoch():
    scores, seen = iter([3.0, 1.0, 2.0, 1.0]), []

    def score(model):
        seen.append(weights(model))
        return next(scores)

    outcome = retrain(network(), task(), epochs=4, recipe=Recipe(SGD, score=score))
    assert outcome.best == Epoch(2, outcome.history[1].training_loss, 1.0)
    assert all(map(torch.equal, weights(outcome.model), seen[1]))


def test_an_epoch_without_a_score_is_never_the_best():
    scores = iter([math.nan, 3.0, 2.0, math.nan])
    outcome = retrain(network(), task(), epochs=4, recipe=Recipe(SGD, score=lambda model: next(scores)))
    assert outcome.best.number == 3


def test_global_randomness_is_left_alone():
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    model = network()
    torch.manual_seed(7)
    retrain(model, task(), epochs=1, recipe=Recipe(SGD))
    assert torch.equal(torch.rand(1), expected)


def test_the_learning_rate_is_annealed_within_epochs():
    rates = []

    class Watched(torch.optim.SGD):
        def step(self, closure=None):
            rates.append(self.param_groups[0]["lr"])
            return super().step(closure)

    retrain(network(), task(), epochs=2, recipe=Recipe(partial(Watched, lr=1.0), lambda progress: 1 - progress))
    assert rates == pytest.approx([1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])


def stop_after_one(epoch):
    if epoch.number == 2:
        raise RuntimeError("stopped")


def test_a_loss_that_is_not_finite_stops_the_training_and_leaves_the_last_checkpoint(tmp_path):
    broken = Task(task().training, task().validation, lambda model, batch: loss(model, batch) * float("nan"))
    with pytest.raises(RuntimeError, match="stopped"):
        retrain(network(), task(), epochs=2, recipe=Recipe(SGD), folder=tmp_path, on_epoch=stop_after_one)
    with pytest.raises(NonFiniteLoss, match=r"loss is nan .* at step 1 of the epoch\. The last"):
        retrain(network(), broken, epochs=2, recipe=Recipe(SGD), folder=tmp_path)
    assert len(retrain(network(), task(), epochs=2, recipe=Recipe(SGD), folder=tmp_path).history) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"training": []}, "training data are empty"),
        ({"validation": []}, "data are empty"),
    ],
)
def test_empty_data_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        retrain(network(), Task(**{**vars(task()), **change}), epochs=1)


@pytest.mark.parametrize("epochs", [0, -1, 1.5, True])
def test_epochs_are_a_positive_whole_number(epochs):
    with pytest.raises(ValueError, match="epochs must be a positive integer"):
        retrain(network(), task(), epochs=epochs)


def test_a_module_without_weights_is_evaluated(tmp_path):
    """Such as an architecture of skips alone: there is nothing to train, and its loss is what it is."""
    x = torch.ones(4, 1)
    ours = Task([x, 2 * x], [x], lambda model, batch: model(batch).square().mean())
    with pytest.warns(UserWarning, match=r"No weights can be trained: .*evaluated as it is"):
        outcome = retrain(nn.Identity(), ours, epochs=3, folder=tmp_path)
    assert [(epoch.training_loss, epoch.score) for epoch in outcome.history] == [(2.5, 1.0)] * 3
    assert outcome.best.number == 1
    assert retrain(nn.Identity(), ours, epochs=3, folder=tmp_path).history == outcome.history


def test_a_loss_that_does_not_depend_on_the_weights_is_told():
    """Such as of an architecture whose path is zeros."""
    ours = Task([1.0], [1.0], lambda model, batch: torch.tensor(batch))
    with pytest.warns(UserWarning, match="does not depend on the weights"):
        retrain(nn.Linear(1, 1), ours, epochs=1)


def searched():
    return Search(nn.Sequential(Choice({"a": nn.Linear(3, 1), "b": nn.Linear(3, 1)})))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"model": searched()}, TypeError, r"got a Search\. Write retrain\(search\.derive\(\), task"),
        ({"model": searched().model}, TypeError, r"Choices are open\. Write retrain\(search\.derive\(\), task"),
        ({"task": ([], [], loss)}, TypeError, r"takes a task, got a tuple\. Write retrain\(model, advnas\.Task\("),
        ({"recipe": SGD}, TypeError, r"must be a Recipe, got a partial\. Write for example recipe=Recipe\("),
        ({"recipe": Recipe(accumulate=0)}, ValueError, "accumulate must be a positive integer, got 0"),
    ],
)
def test_other_arguments_are_told_what_to_write(change, error, message):
    given = {"model": network(), "task": task(), **change}
    with pytest.raises(error, match=message):
        retrain(given.pop("model"), given.pop("task"), epochs=1, **given)


@pytest.mark.parametrize(
    ("of", "got"),
    [
        (lambda model, batch: loss(model, batch).item(), "float"),
        (lambda model, batch: model(batch[0]), r"\[8, 1\]"),
    ],
)
def test_a_loss_is_one_number_in_a_tensor(of, got):
    with pytest.raises(ValueError, match=rf"loss must be a tensor with one number, got .*{got}.*take \.mean"):
        retrain(network(), Task(task().training, task().validation, of), epochs=1)


def test_a_score_may_be_a_tensor_and_must_be_one_number(tmp_path):
    outcome = retrain(
        network(), task(), epochs=1, recipe=Recipe(SGD, score=lambda model: torch.tensor(0.5)), folder=tmp_path
    )
    assert outcome.best.score == 0.5
    for wrong in (None, torch.ones(2)):
        with pytest.raises(TypeError, match=r"Recipe\.score must return one number, .*Return for example"):
            retrain(network(), task(), epochs=1, recipe=Recipe(SGD, score=lambda model, wrong=wrong: wrong))
