"""A user's function becomes a study; tests/cli/test_search.py runs whole ones."""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from advnas import Choice, Search, Task
from advnas.costs import table
from advnas.randomness import seed_of
from advnas.retrain import retrain
from advnas.search import Length, SearchRun
from advnas.studies.entry import load
from advnas.studies.own_network import OwnNetworkSettings, OwnNetworkStudy, load_searched
from advnas.studies.run import read_results, run_search

sys.path.insert(0, str(Path(__file__).parent))

X = torch.linspace(-1, 1, 64).reshape(16, 4)
BATCHES = list(zip(X.split(4), (X.sum(1, keepdim=True) ** 2).split(4), strict=True))


def loss(model, batch):
    return ((model(batch[0]) - batch[1]) ** 2).mean()


def make_search(strategy, seed, *, width=3):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Linear(4, width),
            Choice({"skip": nn.Identity(), "square": nn.Sequential(nn.Linear(width, width), nn.SiLU())}, name="c"),
            nn.BatchNorm1d(width),
            nn.Linear(width, 1),
        )
    return Search(model, strategy, seed=seed), Task(BATCHES, BATCHES[:2], loss, test=BATCHES[2:])


def settings(**changes):
    return OwnNetworkSettings(
        f"{Path(__file__).stem}:make_search", **{"epochs": 3, "warmup": 1, "retrain_epochs": 2} | changes
    )


def test_the_length_is_that_of_the_training_data():
    length = OwnNetworkStudy(settings()).length
    assert (length.per_epoch, length.turns, length.warmup_turns) == (4, 12, 4)


def test_all_strategies_of_a_seed_see_the_same_minibatches():
    study, seen = OwnNetworkStudy(settings()), []
    for strategy in ("advantage", "random"):
        search, data = study.begin(strategy, 3)
        with search.space.running({"c": "skip"}):
            seen.append([data.losses(search)[0](search.model).item() for _ in range(4)])
    assert seen[0] == seen[1]


def test_data_go_on_where_they_were():
    study = OwnNetworkStudy(settings())
    search, data = study.begin("random", 0)
    for _ in range(6):
        data.losses(search)[1]()
    _, again = study.begin("random", 0)
    again.restore(data.state())
    assert again.state() == data.state() == {"training": [1, 2], "validation": [2, 2]}
    with pytest.raises(ValueError, match="the position in the data has no 'validation'"):
        again.restore({"training": [1, 2]})


def test_a_run_is_judged_on_the_test_data_by_its_loss_where_there_is_no_metric(tmp_path):
    study = OwnNetworkStudy(settings(warmup=0))
    run_search(study, "advantage", 0, tmp_path)
    evaluation = read_results(tmp_path)[0]["evaluation"]
    assert [measure["name"] for measure in evaluation["measures"]] == ["test loss"]
    weights = tmp_path / "runs/advantage-0/evaluation/retrained.pt"
    network, task, _ = study.retrained(0, evaluation["architecture"], weights)
    network.eval()
    with torch.no_grad():
        value = sum(loss(network, batch).item() for batch in task.test) / len(task.test)
    assert value == pytest.approx(evaluation["measures"][0]["value"], rel=1e-6)


def test_an_answer_with_inherited_weights_computes_what_the_searched_network_does(tmp_path):
    study = OwnNetworkStudy(settings(warmup=0))
    run_search(study, "advantage", 0, tmp_path)
    load = partial(load_searched, tmp_path / "runs/advantage-0")
    network, _, difference = study.inherited(0, {"c": "square"}, load)
    assert not any(isinstance(module, Choice) for module in network.modules())
    assert difference == 0


def test_low_precision_computes_in_it_and_keeps_the_weights_whole():
    study = OwnNetworkStudy(settings(precision="bfloat16"))
    search, data = study.begin("advantage", 0)
    seen = []
    search.model[0].register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    list(SearchRun(search, data, study.length).turn())
    assert seen == [torch.bfloat16]
    assert {parameter.dtype for parameter in search.model.parameters()} == {torch.float32}


def as_before(strategy, seed):
    return make_search(strategy, 0)


def vector_loss(strategy, seed):
    search, task = make_search(strategy, seed)
    return search, replace(task, loss=lambda model, batch: model(batch[0]))


def accuracy(model, batch):
    return "high"


def text_metric(strategy, seed):
    search, task = make_search(strategy, seed)
    return search, replace(task, metric=accuracy)


def broken_loss(strategy, seed):
    search, task = make_search(strategy, seed)
    return search, replace(task, loss=lambda model, batch: model(batch[0])["logits"])


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("as_before", f"called with seed {seed_of(0, 2) % 2**31}, and its search has 0.*for the fresh weights"),
        ("vector_loss", r"^The loss must be a tensor with one number, got torch.Size\(\[4, 1\]\)"),
        ("text_metric", "^The metric 'accuracy' must return one number for a minibatch, .* got 'high'"),
        ("broken_loss", r'The loss or the metric of .*IndexError.*\n.*model\(batch\[0\]\)\["logits"\]'),
    ],
)
def test_what_would_stop_every_run_is_told_before_the_first(function, told):
    study = OwnNetworkStudy(replace(settings(), entry=f"{Path(__file__).stem}:{function}"))
    with pytest.raises(ValueError, match=f"(?s){told}"):
        study.check("contrast", 0)


def test_a_check_leaves_the_network_and_the_generators_as_they_were(monkeypatch):
    made = []

    def kept(strategy, seed):
        made.append(make_search(strategy, seed))
        return made[-1]

    monkeypatch.setattr(sys.modules[Path(__file__).stem], "make_search", kept)
    before = torch.get_rng_state()
    OwnNetworkStudy(settings()).check("contrast", 0)
    assert torch.equal(torch.get_rng_state(), before)
    monkeypatch.undo()
    fresh = make_search("contrast", 0)[0].model.state_dict()
    assert all(torch.equal(value, fresh[name]) for name, value in made[0][0].model.state_dict().items())


def test_options_are_those_of_the_function():
    entry = f"{Path(__file__).stem}:make_search"
    assert load(entry, {"width": 5})("random", 0, width=5)[0].model[0].out_features == 5
    with pytest.raises(ValueError, match=r"no option 'widht'\. Did you mean 'width'"):
        load(entry, {"widht": 5})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 0}, "epochs must be"),
        ({"warmup": 3}, "warmup must leave epochs for theta: it is 3 of 3"),
        ({"retrain_epochs": 1.5}, "retrain_epochs must be"),
    ],
)
def test_settings_that_cannot_work_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        settings(**change)


def make_small_weights(strategy, seed):
    """A constructor with an initialisation of its own, which leaves the seeding to torch."""
    wide = nn.Linear(32, 32)
    nn.init.normal_(wide.weight, std=0.02)
    model = nn.Sequential(
        nn.Linear(4, 32), Choice({"skip": nn.Identity(), "wide": wide}, name="c"), nn.Linear(32, 1)
    )
    return Search(model, strategy, seed=seed), Task(BATCHES, BATCHES[:2], loss)


def test_an_answer_is_retrained_from_the_weights_that_the_users_function_makes(tmp_path, monkeypatch):
    started = []

    def remember(model, task, **options):
        started.append(model[1].weight.detach().clone())
        return retrain(model, task, **options)

    monkeypatch.setattr("advnas.studies.own_network.retrain", remember)
    study = OwnNetworkStudy(OwnNetworkSettings(f"{Path(__file__).stem}:make_small_weights", retrain_epochs=1))
    for number, seed in enumerate((0, 0, 1)):
        study.retrain(seed, {"c": "wide"}, tmp_path / str(number))
    assert started[0].std().item() == pytest.approx(0.02, abs=0.002)
    assert torch.equal(started[0], started[1])
    assert not torch.equal(started[0], started[2])


def make_limited(strategy, seed):
    """A search with a precision, a limit and a penalty of its own."""
    search, task = make_search(strategy, seed)
    own = Search(
        search.model, strategy, seed=seed, precision="bf16", limit={"parameters": 40}, penalty={"parameters": 1e-3}
    )
    return own, task


def test_what_the_function_says_of_its_search_stays_unless_other_is_asked_for(tmp_path):
    entry = f"{Path(__file__).stem}:make_limited"
    search, data = OwnNetworkStudy(OwnNetworkSettings(entry, epochs=2, warmup=1)).begin("contrast", 0)
    seen = []
    search.model[0].register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    list(SearchRun(search, data, Length(4, 2, 1, 1)).turn())
    assert seen == [torch.bfloat16]
    space = search.space
    asked = {"energy": table(space, {"c": {"skip": 1, "square": 3}}, name="energy")}
    limited = OwnNetworkStudy(
        OwnNetworkSettings(entry, precision="float32", limits={"energy": 2.0}), tuple(asked.values())
    )
    search, _ = limited.begin("contrast", 0)
    assert search.parent.precision.name == "float32"
    assert [(limit.cost.name, limit.amount) for limit in search.policy.budget.limits] == [
        ("energy", 2.0),
        ("parameters", 40.0),
    ]
    assert [(cost.name, weight) for cost, weight in search.policy.budget.penalties] == [("parameters", 1e-3)]


def test_an_answer_is_retrained_in_the_precision_of_its_search(monkeypatch, tmp_path):
    recipes = []

    def remember(model, task, **options):
        recipes.append(options["recipe"])
        return retrain(model, task, **options)

    monkeypatch.setattr("advnas.studies.own_network.retrain", remember)
    study = OwnNetworkStudy(OwnNetworkSettings(f"{Path(__file__).stem}:make_limited", retrain_epochs=1))
    study.retrain(0, {"c": "skip"}, tmp_path)
    assert [recipe.precision for recipe in recipes] == ["bf16"]


def test_float16_has_a_loss_scale_in_a_study_too():
    search, _ = OwnNetworkStudy(settings(precision="fp16")).begin("advantage", 0)
    assert search.parent.precision.scale == search.weights.precision.scale == 2.0**16


class Named(nn.Module):
    """Called by name, as transformers are."""

    def __init__(self):
        super().__init__()
        rivals = {"skip": nn.Identity(), "square": nn.Sequential(nn.Linear(3, 3), nn.SiLU())}
        self.body = nn.Sequential(nn.Linear(4, 3), Choice(rivals, name="c"), nn.Linear(3, 1))

    def forward(self, features=None, scale=1.0):
        return {"prediction": scale * self.body(features), "states": None}


def named_loss(model, batch):
    return ((model(features=batch[0], scale=2.0)["prediction"] - batch[1]) ** 2).mean()


def make_named(strategy, seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Search(Named(), strategy, seed=seed), Task(BATCHES, BATCHES[:2], named_loss)


def test_a_model_that_is_called_by_name_can_be_limited_and_evaluated(tmp_path):
    asked = settings(warmup=0, limits={"multiply_adds": 18.0, "latency": 1000.0, "memory": 1e6})
    study = OwnNetworkStudy(replace(asked, entry=f"{Path(__file__).stem}:make_named"))
    study = replace(study, costs=study.measured("advantage", 0, list(asked.limits)))
    assert study.costs[0].of({"c": "skip"}) == 4 * 3 + 3
    run_search(study, "advantage", 0, tmp_path)
    evaluation = read_results(tmp_path)[0]["evaluation"]
    assert evaluation["architecture"] == {"c": "skip"}
    assert "(features: Tensor, scale: float), which a file cannot take" in evaluation["no_file"]
    load = partial(load_searched, tmp_path / "runs/advantage-0")
    assert study.inherited(0, {"c": "square"}, load)[2] == 0


def test_a_model_that_a_file_can_take_has_no_word_against_it(tmp_path):
    run_search(OwnNetworkStudy(settings(warmup=0)), "advantage", 0, tmp_path)
    assert "no_file" not in read_results(tmp_path)[0]["evaluation"]
