import copy
import math
from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from advnas import Architecture, Choice, Distribution, Search
from advnas.answers.batch_norm import reestimate_batch_norm, track_norms
from advnas.answers.ranking import draw_different, draw_within, rank_architectures
from advnas.randomness import generator
from advnas.spaces.nasbench201 import ConvolutionCellNetwork
from advnas.structure import Nesting


class Scale(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return self.factor * x


def scales():
    """The output is x times 1, 2 or 3 times 1, 10 or 100: every architecture has a loss of its own."""
    return nn.Sequential(
        Choice({"1": Scale(1.0), "2": Scale(2.0), "3": Scale(3.0)}, name="ones"),
        Choice({"1": Scale(1.0), "10": Scale(10.0), "100": Scale(100.0)}, name="tens"),
        nn.Linear(1, 1),
    )


def mean_output(model, batch):
    return model(batch).mean()


BATCHES = [torch.tensor([[1.0], [3.0]]), torch.tensor([[4.0]])]


def search_of_scales():
    search = Search(scales())
    nn.init.ones_(search.model[2].weight)
    nn.init.zeros_(search.model[2].bias)
    return search


def image_search():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 1),
        nn.BatchNorm2d(4),
        Choice({"conv": nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)), "skip": nn.Identity()}),
        nn.Dropout(0.5),
    )
    return Search(model)


def mean_square(model, batch):
    return model(batch[0]).square().mean()


def images(number=12):
    return TensorDataset(torch.randn(number, 3, 4, 4, generator=generator(1)))


def remember_as_best(search, architecture):
    search.policy.best = search.space.one_hot(architecture)
    search.policy.best_loss = torch.tensor(0.0, dtype=torch.float64)


class TestRankArchitectures:
    def test_architectures_are_ranked_by_their_mean_loss_over_all_batches(self):
        scored = rank_architectures(search_of_scales(), BATCHES, mean_output, count=9)
        assert [one.score for one in scored] == [3, 6, 9, 30, 60, 90, 300, 600, 900]  # means 2 and 4, times a scale
        assert scored[4].architecture == {"ones": "2", "tens": "10"}

    def test_the_weights_are_the_inherited_ones(self):
        search = search_of_scales()
        nn.init.constant_(search.model[2].weight, 5.0)
        assert rank_architectures(search, BATCHES, mean_output, count=9)[0].score == 15

    def test_the_argmax_and_the_best_of_the_process_are_always_among_them(self):
        search = search_of_scales()
        remember_as_best(search, {"ones": "3", "tens": "100"})
        for seed in range(5):
            sources = {
                one.source: one.architecture for one in rank_architectures(search, BATCHES, mean_output, count=2)
            }
            assert sources == {"argmax": search.argmax(), "process best": search.process_best.architecture}
            assert len(rank_architectures(search, BATCHES, mean_output, count=4, seed=seed)) == 4

    def test_an_architecture_is_scored_once_also_if_it_was_proposed_twice(self):
        search = search_of_scales()
        remember_as_best(search, search.argmax())
        scored = rank_architectures(search, BATCHES, mean_output, count=100)
        assert Counter(one.architecture for one in scored) == Counter(search.space.architectures())
        assert Counter(one.source for one in scored) == {"argmax": 1, "draw": 8}

    def test_the_seed_decides_the_draws(self):
        def drawn(seed):
            scored = rank_architectures(search_of_scales(), BATCHES, mean_output, count=4, seed=seed)
            return [one.architecture for one in scored]

        assert drawn(0) == drawn(0)
        assert len({frozenset(drawn(seed)) for seed in range(5)}) > 1

    @pytest.mark.parametrize("training", [True, False])
    def test_the_search_and_global_randomness_are_left_as_they_were(self, training):
        search = image_search()
        search.model.train(training)
        search.model[1].eval()
        before, modes = copy.deepcopy(search.state()), [part.training for part in search.model.modules()]
        random = torch.get_rng_state()
        rank_architectures(search, DataLoader(images(), batch_size=4, shuffle=True), mean_square)
        torch.testing.assert_close(search.state(), before, rtol=0, atol=0)
        assert [part.training for part in search.model.modules()] == modes
        assert torch.equal(torch.get_rng_state(), random)

    def test_norms_use_the_batch_and_not_the_statistics_of_all_paths_together(self):
        search, data = image_search(), [images()[:]]
        expected = rank_architectures(search, data, mean_square)
        for part in search.model.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.running_mean.fill_(1e3)
        assert rank_architectures(search, data, mean_square) == expected
        skip = search.derive(Architecture({"2": "skip"}))
        of_skip = next(one.score for one in expected if one.architecture["2"] == "skip")
        assert of_skip == pytest.approx(skip[:2].train()(data[0][0]).square().mean().item())  # and no dropout

    def test_every_architecture_meets_the_same_randomness(self):
        noise = []

        def noisy(model, batch):
            noise.append(torch.rand(()).item())
            return mean_output(model, batch)

        rank_architectures(search_of_scales(), BATCHES, noisy, count=3)
        assert noise[0:2] == noise[2:4] == noise[4:6]
        assert noise[0] != noise[1]

    def test_a_loss_that_is_not_a_number_comes_last(self):
        choice = Choice({"broken": Scale(math.nan), "whole": Scale(1.0)}, name="scale")
        search = Search(nn.Sequential(choice, nn.Linear(1, 1)))
        assert rank_architectures(search, BATCHES, mean_output)[-1].architecture == {"scale": "broken"}

    @pytest.mark.parametrize(
        ("batches", "loss", "message"),
        [
            (iter(BATCHES), mean_output, "list_iterator can be read only once"),
            ([], mean_output, "data are empty"),
            (BATCHES, lambda model, batch: model(batch), "a tensor with one number, got"),
        ],
    )
    def test_what_cannot_be_evaluated_is_refused(self, batches, loss, message):
        with pytest.raises(ValueError, match=message):
            rank_architectures(search_of_scales(), batches, loss)

    def test_the_count_is_positive(self):
        with pytest.raises(ValueError, match="count must be a positive integer, got 0"):
            rank_architectures(search_of_scales(), BATCHES, mean_output, count=0)


class TestDrawDifferent:
    def test_all_architectures_come_once_and_padding_never(self):
        logits = torch.tensor([[1.0, 0.0, 2.0], [0.0, 3.0, -torch.inf]])
        draws = draw_different(Distribution(logits), 100, generator(0))
        assert sorted(tuple(draw.argmax(-1).tolist()) for draw in draws) == [
            (a, b) for a in range(3) for b in (0, 1)
        ]
        assert torch.equal(draws.sum(-1), torch.ones(6, 2))

    @pytest.mark.parametrize("peak", [50.0, 1e4])
    def test_a_theta_that_is_all_but_decided_still_gives_different_ones(self, peak):
        logits = torch.zeros(6, 4)
        logits[:, 2] = peak
        draws = draw_different(Distribution(logits), 10, generator(0))
        assert len({tuple(draw.argmax(-1).tolist()) for draw in draws}) == 10
        assert (draws[0].argmax(-1) == 2).all()

    def test_they_are_as_likely_as_draws_without_replacement(self):
        p, q = (0.5, 0.3, 0.2), (0.6, 0.4)
        rows = [torch.tensor(p).log(), nn.functional.pad(torch.tensor(q).log(), (0, 1), value=-torch.inf)]
        distribution, random, number = Distribution(torch.stack(rows)), generator(0), 4000
        pairs = Counter()
        for _ in range(number):
            first, second = draw_different(distribution, 2, random).argmax(-1).tolist()
            pairs[tuple(first), tuple(second)] += 1
        likely = {(a, b): p[a] * q[b] for a in range(3) for b in range(2)}
        for first in likely:
            for second in likely.keys() - {first}:
                expected = likely[first] * likely[second] / (1 - likely[first])
                deviation = math.sqrt(expected * (1 - expected) / number)
                assert abs(pairs[first, second] / number - expected) < 4 * deviation


def nested_choices():
    """Five networks: skip, linear, and an mlp with one of three activations; 3 x 3 architectures."""
    act = Choice({"relu": nn.ReLU(), "tanh": nn.Tanh(), "none": nn.Identity()}, name="act")
    mlp = nn.Sequential(nn.Linear(4, 8), act, nn.Linear(8, 4))
    block = Choice({"skip": nn.Identity(), "linear": nn.Linear(4, 4), "mlp": mlp}, name="block")
    return Search(nn.Sequential(nn.Linear(4, 4), block))


class TestNestedDecisions:
    """Architectures that differ only in decisions that their network does not contain are one network."""

    @pytest.mark.parametrize("count", [2, 4, 100])
    def test_different_networks_are_drawn(self, count):
        search = nested_choices()
        drawn = draw_within(search, count, generator(0))
        networks = {str(search.space.derive(one)) for one in drawn}
        assert len(drawn) == len(networks) == min(count, 5)
        assert all(one["act"] == "relu" for one in drawn if one["block"] != "mlp")

    def test_a_network_is_as_likely_as_all_its_architectures_together(self):
        search, random, number = nested_choices(), generator(0), 3000
        search.theta.assign(torch.tensor([[0.0, 1.0, 0.5], [0.0, 2.0, 1.0]]))
        nesting, distribution = Nesting.of(search.space), search.distribution
        found = Counter(
            search.space.architecture(draw_different(distribution, 1, random, nesting)[0]) for _ in range(number)
        )
        likely = Counter()
        for one in search.space.architectures():
            p = (distribution.probabilities * search.space.one_hot(one)).sum(-1).prod()
            likely[nesting.canonical(one)] += p.item()
        for network, p in likely.items():
            assert abs(found[network] / number - p) < 4 * math.sqrt(p * (1 - p) / number)

    def test_the_same_network_is_not_scored_twice(self):
        search = nested_choices()
        remember_as_best(search, Architecture({"block": "skip", "act": "none"}))
        batches = [(torch.ones(2, 4),)]
        ranked = rank_architectures(search, batches, lambda model, batch: model(batch[0]).square().mean())
        assert len(ranked) == len({str(search.space.derive(one.architecture)) for one in ranked}) == 5


def run(module, batch):
    return module(batch[0])


class TestSettleNorms:
    @pytest.mark.parametrize("affine", [True, False])
    def test_on_all_data_in_one_batch_evaluation_mode_computes_what_training_mode_does(self, affine):
        module = Search(ConvolutionCellNetwork(channels=4, cells=1, affine=affine)).derive()
        x = images()[:][0]
        reestimate_batch_norm(module, [(x,)], run)
        torch.testing.assert_close(module.eval()(x), module.train()(x), rtol=1e-4, atol=1e-5)

    def test_a_network_without_running_statistics_gets_some_and_then_takes_single_examples(self):
        module = Search(ConvolutionCellNetwork(channels=4, cells=1)).derive()
        x = images()[:][0]
        reestimate_batch_norm(module, [(x,)], run)
        norms = [part for part in module.modules() if isinstance(part, nn.BatchNorm2d)]
        assert all(norm.track_running_stats for norm in norms)
        assert not any(norm.affine for norm in module.body.modules() if isinstance(norm, nn.BatchNorm2d))
        module.eval()
        torch.testing.assert_close(torch.cat([module(one[None]) for one in x]), module(x), rtol=1e-4, atol=1e-5)

    def test_batches_of_any_sizes_give_the_statistics_of_all_the_data(self):
        module, x = nn.BatchNorm2d(3, momentum=None), images()[:][0] + 5
        reestimate_batch_norm(module, [(x[:2],), (x[2:7],), (x[7:],)], run)
        variance, mean = torch.var_mean(x, (0, 2, 3), correction=0)
        torch.testing.assert_close((module.running_mean, module.running_var), (mean, variance))
        assert module.num_batches_tracked == 3
        assert module.momentum is None

    def test_earlier_statistics_are_forgotten(self):
        module, x = nn.BatchNorm2d(3), images()[:][0]
        fresh = copy.deepcopy(module)
        module.running_mean.fill_(1e3)
        for one in (module, fresh):
            reestimate_batch_norm(one, [(x,)], run)
        assert torch.equal(module.running_mean, fresh.running_mean)

    @pytest.mark.parametrize("training", [True, False])
    def test_modes_are_left_and_dropout_is_off_as_it_will_be_in_use(self, training):
        module, x = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm2d(3)).train(training), images()[:][0]
        reestimate_batch_norm(module, [(x,)], run)
        assert [part.training for part in module.modules()] == [training] * 3
        torch.testing.assert_close(module[1].running_mean, x.mean((0, 2, 3)))

    def test_a_pass_that_fails_changes_nothing(self):
        module = nn.Sequential(nn.BatchNorm2d(3), nn.BatchNorm2d(3, track_running_stats=False))
        before, x = copy.deepcopy(module.state_dict()), images()[:][0]
        with pytest.raises(RuntimeError, match="2 elements not 3"):
            reestimate_batch_norm(module, [(x,), (x[:, :2],)], run)
        torch.testing.assert_close(dict(module.state_dict()), dict(before), rtol=0, atol=0)
        assert module.training
        assert not module[1].track_running_stats
        assert not module[0]._forward_hooks

    def test_without_data_there_are_no_statistics(self):
        with pytest.raises(ValueError, match="no batches"):
            reestimate_batch_norm(nn.BatchNorm2d(3), [], run)

    def test_a_layer_that_nothing_reaches_keeps_its_statistics(self):
        module = nn.ModuleDict({"used": nn.BatchNorm2d(3), "unused": nn.BatchNorm2d(3)})
        module["unused"].running_mean.fill_(7.0)
        reestimate_batch_norm(module, [images()[:][0]], lambda module, x: module["used"](x))
        assert (module["unused"].running_mean == 7).all()

    def test_norms_can_be_made_to_track_before_weights_are_loaded(self):
        settled, fresh = (nn.Sequential(nn.BatchNorm2d(3, affine=False, track_running_stats=False)) for _ in "ab")
        reestimate_batch_norm(settled, [images()[:]], run)
        track_norms(fresh)
        fresh.load_state_dict(settled.state_dict())
        x = images()[:][0]
        assert torch.equal(fresh.eval()(x), settled.eval()(x))
        assert torch.isfinite(F.mse_loss(fresh(x[:1]), x[:1]))
