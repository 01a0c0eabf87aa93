import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from advnas import Architecture, Draw, Search, SearchSpace, strategies
from advnas.search.plan import saved_bytes
from advnas.spaces.recurrent_cell import OPERATIONS, Decoder, Edge, RecurrentCellNetwork
from advnas.testing import check_space

NAMES = ["0->1", "0->2", "1->2", "0->3", "1->3", "2->3"]
WORDS, HIDDEN, TIME, BATCH = 11, 5, 4, 3
ARCHITECTURES = {
    **{operation: [operation] * 6 for operation in OPERATIONS},
    "mixed": ["relu", "tanh", "zero", "identity", "sigmoid", "tanh"],
    "a node without W^h": ["zero", "zero", "relu", "zero", "identity", "zero"],
}
every_architecture = pytest.mark.parametrize("operations", ARCHITECTURES.values(), ids=ARCHITECTURES)


def architecture(*operations):
    return Architecture(dict(zip(NAMES, operations, strict=True)))


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tokens(*shape, seed=0, words=WORDS):
    return torch.randint(words, shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def network():
    """A small one in double precision and eval mode, with weights large enough to tell activations apart."""
    network = RecurrentCellNetwork(WORDS, hidden=HIDDEN).double().eval()
    with torch.no_grad():
        for weight in network.cell.parameters():
            weight.mul_(25)
        network.decoder.bias.uniform_(-1, 1)
    return network


@pytest.fixture
def space(network):
    return SearchSpace(network)


@pytest.fixture
def text():
    return tokens(TIME, BATCH)


@pytest.fixture
def hidden():
    return randn(BATCH, HIDDEN, seed=1)


# The formulas, once more


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


ACTIVATIONS = (lambda x: np.maximum(x, 0), np.tanh, sigmoid, lambda x: x, np.zeros_like)


def normalise(x):
    return (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)


def in_numpy(network, mixture, words, h, constant=0.0, node=lambda x: x):
    """Logits [time, batch, words] and the last h, for weights [decisions, operations] of the activations."""
    edges = dict(zip(NAMES, network.cell.edges, strict=True))
    matrices = {
        name: (edge.carry.detach().numpy(), edge.activation.candidates[0].weight.detach().numpy())
        for name, edge in edges.items()
    }
    w_in = network.cell.weight.detach().numpy()
    embedding, decoder = network.embedding.weight.detach().numpy(), network.decoder.weight.detach().numpy()
    logits = []
    for row in words.numpy():
        both = np.concatenate([embedding[row], h], axis=1)
        c = sigmoid(both @ w_in[:HIDDEN].T)
        x = [node(h + c * (np.tanh(both @ w_in[HIDDEN:].T) - h))]
        for target in (1, 2, 3):
            arriving = []
            for source in range(target):
                name = f"{source}->{target}"
                w_c, w_h = matrices[name]
                product, weights = x[source] @ w_h.T, mixture[NAMES.index(name)]
                act = constant + sum(w * f(product) for w, f in zip(weights, ACTIVATIONS, strict=True))
                arriving.append(x[source] + sigmoid(x[source] @ w_c.T) * (act - x[source]))
            x.append(node(np.mean(arriving, axis=0)))
        h = np.mean(x[1:], axis=0)
        logits.append(h @ decoder.T + network.decoder.bias.detach().numpy())
    return np.stack(logits), h


@every_architecture
def test_it_computes_the_formulas_of_the_paper(network, space, text, hidden, operations):
    chosen = architecture(*operations)
    with space.running(chosen):
        logits, last = network(text, hidden)
    expected = in_numpy(network, space.one_hot(chosen).numpy(), text, hidden.numpy())
    np.testing.assert_allclose(logits.detach(), expected[0], rtol=1e-10)
    np.testing.assert_allclose(last.detach(), expected[1], rtol=1e-10)


@pytest.mark.parametrize("training", [True, False])
def test_nodes_are_normalised_over_the_minibatch_where_asked_for(text, hidden, training):
    network = RecurrentCellNetwork(WORDS, hidden=HIDDEN, dropout=0.0, normalised=True).double().train(training)
    space = SearchSpace(network)
    chosen = architecture("relu", "sigmoid", "zero", "tanh", "identity", "sigmoid")
    with space.running(chosen):
        logits, _ = network(text, hidden)
    expected, _ = in_numpy(network, space.one_hot(chosen).numpy(), text, hidden.numpy(), node=normalise)
    np.testing.assert_allclose(logits.detach(), expected, rtol=1e-7, atol=1e-9)


def test_a_dense_draw_adds_up_the_weighted_activations(network, space, text, hidden):
    mixture = randn(6, 5, seed=2).softmax(-1)
    for weights in (mixture, mixture.clone().requires_grad_()):
        with space.running(Draw(weights, torch.ones(6, 5, dtype=torch.bool))):
            logits, _ = network(text, hidden)
        expected, _ = in_numpy(network, mixture.numpy(), text, hidden.numpy())
        np.testing.assert_allclose(logits.detach(), expected, rtol=1e-10)


def test_two_active_candidates_of_which_one_has_a_weight_of_0_are_the_other(network, space, text, hidden):
    chosen = space.one_hot(architecture(*["zero"] * 6)).double()
    active = (chosen + space.one_hot(architecture(*["tanh"] * 6))) > 0
    draw = Draw(chosen.clone().requires_grad_(), active)
    with space.running(draw):
        logits, _ = network(text, hidden)
    (slope,) = torch.autograd.grad(logits.square().sum(), draw.weights)
    np.testing.assert_allclose(
        logits.detach(), in_numpy(network, chosen.numpy(), text, hidden.numpy())[0], rtol=1e-10
    )
    assert (slope != 0).equal(active & ~space.zeros)


def test_constants_are_added_to_what_an_activation_returns(network, space, text, hidden):
    chosen = space.one_hot(architecture(*["relu"] * 6)).double()
    weights = torch.where(chosen > 0, 1.0, 0.25).double()
    with space.running(Draw(weights, chosen > 0, constants=True)):
        logits, _ = network(text, hidden)
    expected, _ = in_numpy(network, chosen.numpy(), text, hidden.numpy(), constant=1.0)
    np.testing.assert_allclose(logits.detach(), expected, rtol=1e-10)


def test_without_words_the_state_it_is_handed_matters_and_none_means_zeros(network, space, text):
    with space.running(architecture(*["tanh"] * 6)):
        assert network(text)[0].equal(network(text, torch.zeros(BATCH, HIDDEN).double())[0])
        assert not network(text)[0].equal(network(text, torch.ones(BATCH, HIDDEN).double())[0])


def test_a_text_read_in_two_pieces_is_the_text_read_in_one(network, space, text, hidden):
    with space.running(architecture(*ARCHITECTURES["mixed"])):
        whole, end = network(text, hidden)
        first, middle = network(text[:1], hidden)
        second, last = network(text[1:], middle.detach())
    assert torch.allclose(torch.cat([first, second]), whole, rtol=1e-12)
    assert torch.allclose(last, end, rtol=1e-12)


# The space


def test_the_space_is_the_papers(space):
    assert [decision.name for decision in space.decisions] == NAMES
    assert {decision.operations for decision in space.decisions} == {OPERATIONS}
    assert space.size == 5**6
    assert space.zeros.nonzero()[:, 1].tolist() == [4] * 6


@pytest.mark.parametrize(("nodes", "edges"), [(1, 1), (2, 3), (4, 10)])
def test_there_is_an_edge_from_every_node_to_every_later_one(nodes, edges):
    network = RecurrentCellNetwork(WORDS, hidden=2, nodes=nodes)
    space = SearchSpace(network)
    assert len(space) == edges
    with space.running(next(space.architectures())):
        assert network(tokens(2, 3))[0].shape == (2, 3, WORDS)


def test_it_holds_the_rules_of_a_space():
    check_space(
        lambda: RecurrentCellNetwork(WORDS, hidden=HIDDEN),
        tokens(2, BATCH),
        randn(BATCH, HIDDEN).float(),
        architectures=40,
    )


@pytest.mark.parametrize("name", strategies.names())
def test_every_strategy_can_search_it(name):
    network, segment = RecurrentCellNetwork(WORDS, hidden=HIDDEN), tokens(TIME + 1, BATCH)
    search = Search(network, name, steps=4)
    before = search.theta.logits().detach()

    def loss_of(model):
        return model.loss(segment[:-1], segment[1:])[0]

    for _ in range(2):
        search.weight_step(loss_of)
        search.architecture_step(loss_of, training_loss_of=loss_of)
    assert search.theta.logits().isfinite().all()
    assert name in ("parsec", *strategies.baselines()) or not search.theta.logits().equal(before)


@every_architecture
def test_a_derived_module_is_its_parent_to_the_last_bit(network, space, text, hidden, operations):
    chosen = architecture(*operations)
    plain = space.derive(chosen)
    with space.running(chosen):
        ours = *network(text, hidden), network.loss(text, text, hidden)[0]
    theirs = *plain(text, hidden), plain.loss(text, text, hidden)[0]
    assert all(a.equal(b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("zeros", [0, 1, 6])
def test_parameters_of_the_paper_s_size(zeros):
    """Embedding 3 M, decoder 3.01 M, W_in 0.36 M, and 0.18 M an edge, or 0.09 M where it is zero and has no W^h."""
    with torch.device("meta"):
        space = SearchSpace(RecurrentCellNetwork(10_000, hidden=300))
    plain = space.derive(architecture(*["zero"] * zeros, *["relu"] * (6 - zeros)))
    assert sum(parameter.numel() for parameter in plain.parameters()) == 7_450_000 - 90_000 * zeros


def test_fresh_weights_are_those_of_darts_and_of_the_seed():
    space = SearchSpace(RecurrentCellNetwork(WORDS, hidden=HIDDEN))
    chosen = architecture(*ARCHITECTURES["mixed"])
    one, same, other = (space.derive(chosen, fresh=seed) for seed in (1, 1, 2))
    for path, weight in one.named_parameters():
        assert weight.equal(same.get_parameter(path))
        limit = 0.04 if path.startswith("cell") else 0.1
        if path == "decoder.bias":
            assert not weight.any()
        else:
            assert not weight.equal(other.get_parameter(path))
            assert 0.8 * limit < weight.abs().max() <= limit


@pytest.mark.parametrize("trained", ["relu", "tanh", "sigmoid", "identity"])
def test_the_activations_of_an_edge_share_their_weight(network, space, text, trained):
    with space.running(architecture(*[trained] * 6)):
        network.loss(text, text)[0].backward()
    for edge in network.cell.edges:
        weights = {candidate.weight for candidate in list(edge.activation.candidates)[:4]}
        assert len(weights) == 1
        assert weights.pop().grad.any()


# What is left out


def test_an_edge_that_is_zero_computes_no_product_with_w_h(space, text):
    counts = []
    for operations in (["relu"] * 6, ["zero"] * 6, ["relu", "zero"] * 3):
        with FlopCounterMode(display=False) as counter:
            space.derive(architecture(*operations))(text)
        counts.append(counter.get_total_flops())
    one_edge = 2 * HIDDEN * HIDDEN * TIME * BATCH
    assert counts[0] - counts[1] == 6 * one_edge
    assert counts[0] - counts[2] == 3 * one_edge


def test_leaving_it_out_changes_nothing(network, space, text, hidden):
    chosen = space.one_hot(architecture(*ARCHITECTURES["mixed"])).double()
    relu = space.one_hot(architecture(*["relu"] * 6)) > 0
    outputs = []
    for draw in (Draw.bare(chosen), Draw(chosen, relu | (chosen > 0))):
        with space.running(draw):
            outputs.append(network(text, hidden)[0])
    assert torch.allclose(*outputs, rtol=1e-12)


def test_w_h_of_an_edge_that_is_zero_gets_no_gradient(network, space, text):
    with space.running(architecture(*ARCHITECTURES["mixed"])):
        network.loss(text, text)[0].backward()
    without = [name for name, weight in network.named_parameters() if weight.grad is None]
    assert without == ["cell.edges.2.activation.candidates.0.weight"]
    assert all(weight.grad.any() for weight in network.parameters() if weight.grad is not None)


@pytest.mark.parametrize("operation", ["relu", "sigmoid", "identity"])
def test_every_activation_keeps_as_much_for_the_backward_pass(space, text, operation):
    plain, other = (space.derive(architecture(*[name] * 6)) for name in ("tanh", operation))
    assert saved_bytes(lambda: plain.loss(text, text)) == saved_bytes(lambda: other.loss(text, text))


# Gates


@every_architecture
def test_the_slope_of_a_gate_is_that_of_finite_differences(network, space, text, hidden, operations):
    chosen = space.one_hot(architecture(*operations)).double()

    def loss(draw):
        with space.running(draw):
            return network.loss(text, text.flip(0), hidden)[0]

    draw, step = Draw.gated(chosen), 1e-6
    (slope,) = torch.autograd.grad(loss(draw), draw.weights)
    for edge, column in enumerate(chosen.argmax(-1).tolist()):
        nudge = torch.zeros_like(chosen)
        nudge[edge, column] = step
        up, down = (loss(Draw(chosen + sign * nudge, chosen > 0)).item() for sign in (1, -1))
        assert slope[edge, column].item() == pytest.approx((up - down) / (2 * step), rel=1e-4, abs=1e-9)


def test_the_slope_of_a_gate_adds_up_the_steps_of_time(network, space, text, hidden):
    """A_i = sum over time of <d loss / d O_i, O_i>, as one decision is used at every step."""
    chosen = space.one_hot(architecture(*ARCHITECTURES["mixed"])).double()
    outputs = [[] for _ in NAMES]
    draw = Draw.gated(chosen)
    with space.running(draw):
        (slope,) = torch.autograd.grad(network.loss(text, text, hidden)[0], draw.weights)
    for edge, seen in zip(network.cell.edges, outputs, strict=True):
        edge.activation.register_forward_hook(lambda _, __, output, seen=seen: seen.append(output))
    with space.running(Draw.bare(chosen)):
        loss, _ = network.loss(text, text, hidden)
    for row, seen in zip(slope, outputs, strict=True):
        assert len(seen) == TIME
        gradients = torch.autograd.grad(loss, seen, retain_graph=True) if seen[0].requires_grad else []
        shares = [(gradient * output).sum().item() for gradient, output in zip(gradients, seen, strict=False)]
        assert row.sum().item() == pytest.approx(sum(shares), rel=1e-9, abs=1e-15)


# Dropout


def test_dropout_works_in_training_only(space, network, text):
    with space.running(architecture(*["tanh"] * 6)):
        assert network(text)[0].equal(network(text)[0])
        network.train()
        assert not network(text)[0].equal(network(text)[0])


def test_what_the_cell_carries_to_its_next_step_is_not_dropped(text, hidden):
    network = RecurrentCellNetwork(WORDS, hidden=HIDDEN, dropout=1.0).double()
    with SearchSpace(network).running(architecture(*["tanh"] * 6)):
        logits, last = network(text, hidden)
    assert not logits.any()
    assert last.all()


# The loss


@pytest.mark.parametrize("count", [1, 256, 600])
def test_the_loss_and_its_slopes_are_those_of_the_cross_entropy_of_the_logits(count):
    decoder, targets = Decoder(HIDDEN, WORDS).double(), tokens(count)
    outcomes = []
    for loss_of in (decoder.loss, lambda x, y: F.cross_entropy(decoder(x), y)):
        features = (20 * randn(count, HIDDEN)).requires_grad_()
        loss = loss_of(features, targets)
        outcomes.append([loss, *torch.autograd.grad(3 * loss, [features, decoder.weight, decoder.bias])])
    for ours, theirs in zip(*outcomes, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_less_precision_the_loss_and_its_slopes_are_nearly_the_same(space, network, text, dtype):
    outcomes = []
    for enabled in (True, False):
        with space.running(architecture(*["tanh"] * 6)), torch.autocast("cpu", dtype=dtype, enabled=enabled):
            loss, state = network.float().loss(text, text)
        outcomes.append([loss, state, *torch.autograd.grad(loss, [network.decoder.weight, network.cell.weight])])
    for less, full in zip(*outcomes, strict=True):
        torch.testing.assert_close(less, full, rtol=0.05, atol=0.01)


def test_the_loss_of_very_unlikely_words_is_finite_and_exact():
    decoder = Decoder(1, 2)
    nn.init.constant_(decoder.weight, 0)
    with torch.no_grad():
        decoder.weight[0] = 1
    assert decoder.loss(torch.tensor([[1e4]]), torch.tensor([1])).item() == 1e4


def test_the_slopes_of_the_loss_are_those_of_finite_differences():
    decoder, targets = Decoder(3, 4).double(), tokens(5, words=4)
    parameters = dict(decoder.named_parameters())

    def loss(features, weight, bias):
        return torch.func.functional_call(
            Losses(decoder), {"of.weight": weight, "of.bias": bias}, (features, targets)
        )

    assert torch.autograd.gradcheck(loss, [randn(5, 3).requires_grad_(), *parameters.values()])


class Losses(nn.Module):
    def __init__(self, decoder):
        super().__init__()
        self.of = decoder

    def forward(self, features, targets):
        return self.of.loss(features, targets)


@pytest.mark.parametrize("frozen", ["weight", "bias", "both", "features"])
def test_slopes_nobody_asks_for_are_left_out(frozen):
    decoder, features = Decoder(HIDDEN, WORDS).double(), randn(7, HIDDEN).requires_grad_(frozen != "features")
    for name, parameter in decoder.named_parameters():
        parameter.requires_grad_(frozen not in (name, "both"))
    wanted = [tensor for tensor in (features, decoder.weight, decoder.bias) if tensor.requires_grad]
    slopes = torch.autograd.grad(decoder.loss(features, tokens(7)), wanted)
    expected = torch.autograd.grad(F.cross_entropy(decoder(features), tokens(7)), wanted)
    assert all(torch.allclose(a, b, rtol=1e-10) for a, b in zip(slopes, expected, strict=True))


def test_without_gradients_the_loss_is_the_same_number(space, network, text, hidden):
    with space.running(architecture(*["tanh"] * 6)):
        loss, last = network.loss(text, text, hidden)
        logits, _ = network(text, hidden)
        with torch.no_grad():
            again, _ = network.loss(text, text, hidden)
    assert loss.requires_grad
    assert last.requires_grad
    assert not again.requires_grad
    assert again.equal(loss)
    assert torch.allclose(loss, F.cross_entropy(logits.flatten(0, 1), text.flatten()), rtol=1e-12)


def test_the_loss_keeps_no_logits_for_the_backward_pass():
    decoder, features = Decoder(4, 1_000), torch.ones(500, 4, requires_grad=True)
    logits = 500 * 1_000 * 4
    assert saved_bytes(lambda: decoder.loss(features, tokens(500))) < logits / 50
    assert saved_bytes(lambda: F.cross_entropy(decoder(features), tokens(500))) >= logits


def test_a_backward_pass_can_be_repeated():
    decoder, features = Decoder(HIDDEN, WORDS).double(), randn(7, HIDDEN).requires_grad_()
    loss = decoder.loss(features, tokens(7))
    first, second = (torch.autograd.grad(loss, features, retain_graph=True)[0] for _ in range(2))
    assert first.equal(second)


def test_a_second_derivative_of_the_loss_is_refused_clearly():
    decoder, features = Decoder(HIDDEN, WORDS), torch.ones(2, HIDDEN, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"only once; do not use create_graph=True"):
        torch.autograd.grad(decoder.loss(features, tokens(2)), features, create_graph=True)


# Errors


def test_without_an_architecture_it_says_what_to_do(network, text):
    with pytest.raises(RuntimeError, match=r"has no architecture to run"):
        network(text)


def test_inputs_of_other_shapes_are_refused(network, text, hidden):
    with pytest.raises(ValueError, match=r"hidden must be \[batch, hidden\] = \[3, 5\] .* got \[2, 5\]"):
        network(text, hidden[:2])
    with pytest.raises(ValueError, match=r"tokens must be int64 \[time, batch\] .* got \[3\]"):
        network(text[0], hidden)
    with pytest.raises(ValueError, match=r"tokens must be int64 \[time, batch\] .* got \[0, 3\]"):
        network(text[:0], hidden)
    with pytest.raises(ValueError, match=r"targets must be shaped like tokens.* got \[3, 3\] for tokens \[4, 3\]"):
        network.loss(text, text[1:], hidden)


@pytest.mark.parametrize("wrong", ["vocabulary", "hidden", "nodes"])
def test_sizes_below_1_are_refused(wrong):
    with pytest.raises(ValueError, match=rf"{wrong} must be at least 1, got 0"):
        RecurrentCellNetwork(**{"vocabulary": WORDS, wrong: 0})


def test_edges_name_the_weights_that_the_current_draw_needs(network, space):
    edge = network.cell.edges[0]
    assert isinstance(edge, Edge)
    with space.running(architecture(*["zero"] * 6)):
        assert len(edge.weights) == 1
    with space.running(architecture(*["tanh"] * 6)):
        assert len(edge.weights) == 2
