"""The recurrent language model of the Penn Treebank search: one cell whose activations are open."""

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from advnas.choice import Choice, Zero

OPERATIONS = ("relu", "tanh", "sigmoid", "identity", "zero")
_CELL_RANGE, _WORD_RANGE = 0.04, 0.1  # of the uniform initial weights, as in DARTS
_ROWS = 256  # tokens whose logits exist at a time: 10 MB of them for 10,000 words, which caches still help with


def _cell_weight(size: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(size, size).uniform_(-_CELL_RANGE, _CELL_RANGE))


def _moved(x: Tensor, towards: Tensor, carry: Tensor) -> Tensor:
    """x + c * (towards - x) with c = sigmoid(carry), in the precision of x: autocast leaves the others in less."""
    return torch.lerp(x, towards.to(x.dtype), torch.sigmoid(carry).to(x.dtype))


class Activation(nn.Module):
    """act(W^h x), given the product W^h x.

    The product is computed outside, together with others. The weight is held here all the same: the activations
    of an edge share one W^h, and as Zero has none, neither has a derived edge that is zero.
    """

    def __init__(self, function: nn.Module, weight: nn.Parameter) -> None:
        super().__init__()
        self.function = function
        self.weight = weight

    def reset_parameters(self) -> None:
        """DARTS's initial weights."""
        nn.init.uniform_(self.weight, -_CELL_RANGE, _CELL_RANGE)

    def forward(self, product: Tensor) -> Tensor:
        """[batch, hidden] to the same."""
        output: Tensor = self.function(product)
        # A slice that is kept for the backward pass would keep the products of all edges that it was cut from.
        return output.clone() if output is product else output


class Edge(nn.Module):
    """y = x + c * (act(W^h x) - x),   c = sigmoid(W^c x),   with the activation act open.

    The operation of the decision is the activation: its output is act(W^h x), and an edge that is zero gives
    (1 - c) x. No biases, as in DARTS.
    """

    def __init__(self, hidden: int, source: int, target: int) -> None:
        super().__init__()
        self.source, self.target = source, target
        self.carry = _cell_weight(hidden)  # W^c
        weight = _cell_weight(hidden)  # W^h
        activations = (nn.ReLU(), nn.Tanh(), nn.Sigmoid(), nn.Identity())
        candidates: list[nn.Module] = [*(Activation(function, weight) for function in activations), Zero()]
        self.activation: nn.Module = Choice(
            dict(zip(OPERATIONS, candidates, strict=True)), name=f"{source}->{target}"
        )

    def reset_parameters(self) -> None:
        """DARTS's initial weights."""
        nn.init.uniform_(self.carry, -_CELL_RANGE, _CELL_RANGE)

    @property
    def weights(self) -> list[Tensor]:
        """W^c, and W^h unless all that runs now is Zero: one or two [hidden, hidden]."""
        activation = self.activation
        active = activation.active if isinstance(activation, Choice) else (activation,)
        shared = [candidate.weight for candidate in active if isinstance(candidate, Activation)]
        return [self.carry, *shared[:1]]

    def forward(self, x: Tensor, carry: Tensor, product: Tensor | None = None) -> Tensor:
        """From x, W^c x and, where `weights` has a W^h, W^h x: each [batch, hidden], to the same."""
        # Of what Zero is given, only the shape matters.
        operation = self.activation(x if product is None else product)
        return _moved(x, operation, carry)


class RecurrentCell(nn.Module):
    """One step of time, h to h', with nodes x_0 .. x_N and an edge from every node to every later one.

        x_0 = h + c_in * (tanh(W_in^h (x_e, h)) - h),   c_in = sigmoid(W_in^c (x_e, h))
        x_j = mean over i < j of y_ij(x_i)
        h'  = mean of x_1 .. x_N

    The products of a node with the weights of all its edges are one matrix product.

    normalised: whether x_0 .. x_N are normalised over the minibatch. DARTS does so while it searches, and not in
        what it trains afterwards: the size and the mean of a node then do not depend on the activations drawn.
    """

    def __init__(self, hidden: int, nodes: int, *, normalised: bool = False) -> None:
        super().__init__()
        self.hidden, self.nodes = hidden, nodes
        self.norm: nn.Module = nn.Identity()
        if normalised:
            self.norm = nn.BatchNorm1d(hidden, affine=False, track_running_stats=False)
        self.weight = _cell_weight(2 * hidden)  # W_in: rows of c_in and of what it lets in, columns of x_e and h
        pairs = [(source, target) for target in range(1, nodes + 1) for source in range(target)]
        self.edges = nn.ModuleList(Edge(hidden, source, target) for source, target in pairs)

    def reset_parameters(self) -> None:
        """DARTS's initial weights."""
        nn.init.uniform_(self.weight, -_CELL_RANGE, _CELL_RANGE)

    def forward(self, words: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Words [time, batch, hidden] and h [batch, hidden] to all h' [time, batch, hidden], and the last."""
        from_words, from_hidden = self.weight.chunk(2, dim=1)
        fans = [_Fan(self._leaving(node)) for node in range(self.nodes)]
        outputs = []
        for entering in F.linear(words, from_words).unbind():
            carry, product = torch.addmm(entering, hidden, from_hidden.t()).chunk(2, dim=1)
            hidden = self._step(_moved(hidden, torch.tanh(product), carry), fans)
            outputs.append(hidden)
        return torch.stack(outputs), hidden

    def _leaving(self, node: int) -> list[Edge]:
        return [edge for edge in self.edges if isinstance(edge, Edge) and edge.source == node]

    def _step(self, x: Tensor, fans: "Sequence[_Fan]") -> Tensor:
        """x_0 to h', both [batch, hidden]."""
        node, nodes = self.norm(x), []
        arrived: list[list[Tensor]] = [[] for _ in range(len(fans) + 1)]
        for fan, parts in zip(fans, arrived[1:], strict=True):
            for target, y in fan.run(node):
                arrived[target].append(y)
            node = self.norm(_mean(parts))  # all its edges have arrived: they leave earlier nodes
            nodes.append(node)
        return _mean(nodes)


class _Fan:
    """The edges that leave one node, with their weights put together once for all steps of time."""

    def __init__(self, edges: list[Edge]) -> None:
        weights = [edge.weights for edge in edges]
        self._edges = [(edge, len(own)) for edge, own in zip(edges, weights, strict=True)]
        self._count = sum(map(len, weights))
        self._matrix = torch.cat([weight for own in weights for weight in own])

    def run(self, x: Tensor) -> Iterator[tuple[int, Tensor]]:
        """(the node that an edge leads to, y [batch, hidden]) for every edge, given x [batch, hidden]."""
        products = iter(F.linear(x, self._matrix).chunk(self._count, dim=1))
        for edge, count in self._edges:
            yield edge.target, edge(x, *islice(products, count))


def _mean(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else reduce(torch.add, parts) / len(parts)


class WordEmbedding(nn.Embedding):
    """An embedding with DARTS's initial weights."""

    def reset_parameters(self) -> None:
        """Uniform in -0.1 .. 0.1."""
        nn.init.uniform_(self.weight, -_WORD_RANGE, _WORD_RANGE)


class Decoder(nn.Linear):
    """The softmax layer: logits of all words, or straight the cross entropy of the right ones."""

    def reset_parameters(self) -> None:
        """Weights uniform in -0.1 .. 0.1, biases 0, as in DARTS."""
        nn.init.uniform_(self.weight, -_WORD_RANGE, _WORD_RANGE)
        nn.init.zeros_(self.bias)

    def loss(self, features: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy of the logits of features [n, hidden] for targets int64 [n]: a scalar.

        As F.cross_entropy(self(features), targets), in half the time and without logits [n, vocabulary] in memory.
        """
        tensors = (features, self.weight, self.bias)
        # Asked here because a Function's own forward pass always finds gradients switched off.
        wanted = [torch.is_grad_enabled() and tensor.requires_grad for tensor in tensors]
        loss: Tensor = _DecodedCrossEntropy.apply(*tensors, targets, wanted)  # type: ignore[no-untyped-call]
        return loss


class _DecodedCrossEntropy(torch.autograd.Function):
    """mean over n of -log softmax(W x_n + b)[target_n], some rows at a time.

    d loss / d logits = (softmax - one-hot) / n needs nothing from later layers but a factor, so the gradients are
    formed on the way forward, while the logits are at hand: nothing is kept or computed twice.
    """

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, wanted: list[bool]
    ) -> Tensor:
        slopes = [torch.zeros_like(t) if w else None for t, w in zip((features, weight, bias), wanted, strict=True)]
        total = features.new_zeros(())
        for start in range(0, len(features), _ROWS):
            rows = slice(start, start + _ROWS)
            x, right = features[rows], targets[rows, None]
            # In the precision of the features, where autocast computes logits in less.
            log_p = torch.log_softmax(torch.addmm(bias, x, weight.t()), dim=1, dtype=x.dtype)
            total -= log_p.gather(1, right).sum()
            if any(wanted):
                slope = log_p.exp_().scatter_add_(1, right, log_p.new_full(right.shape, -1))
                _collect(slopes, rows, x, weight, slope)
        ctx.save_for_backward(*slopes)
        ctx.count = len(features)
        return total / len(features)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "The decoder's loss can be differentiated only once; do not use create_graph=True here, or take "
                "F.cross_entropy of the logits instead."
            )
        factor = gradient / ctx.count
        return (*(None if slope is None else slope * factor for slope in ctx.saved_tensors), None, None)


def _collect(slopes: list[Tensor | None], rows: slice, x: Tensor, weight: Tensor, slope: Tensor) -> None:
    """Add what d loss / d logits of some rows [rows, vocabulary] means for features, weight and bias."""
    of_features, of_weight, of_bias = slopes
    if of_features is not None:
        torch.mm(slope, weight, out=of_features[rows])
    if of_weight is not None:
        of_weight.addmm_(slope.t(), x)
    if of_bias is not None:
        of_bias += slope.sum(0)


class RecurrentCellNetwork(nn.Module):
    """A language model: embedding, dropout, the recurrent cell over time, dropout, decoder.

    vocabulary: how many words there are. hidden: size of the embedding, of every node and of the state that is
    carried through time. nodes: intermediate nodes of the cell. dropout: its probability, drawn anew for every
    element; what the cell carries to its next step is not dropped. normalised: see `RecurrentCell`.

        loss, hidden = model.loss(tokens, targets, hidden)      # detach hidden before the next segment
        logits, hidden = model(tokens, hidden)

    Embedding and decoder do not share their weights.
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        hidden: int = 300,
        nodes: int = 3,
        dropout: float = 0.5,
        normalised: bool = False,
    ) -> None:
        super().__init__()
        for name, value in {"vocabulary": vocabulary, "hidden": hidden, "nodes": nodes}.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}.")
        self.embedding = WordEmbedding(vocabulary, hidden)
        self.dropout = nn.Dropout(dropout)
        self.cell = RecurrentCell(hidden, nodes, normalised=normalised)
        self.decoder = Decoder(hidden, vocabulary)

    def forward(self, tokens: Tensor, hidden: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Tokens int64 [time, batch] and h [batch, hidden] to logits [time, batch, vocabulary] and the next h.

        hidden: what an earlier call returned; zeros where None. The next h is not detached.
        """
        features, last = self._features(tokens, hidden)
        return self.decoder(features), last

    def loss(self, tokens: Tensor, targets: Tensor, hidden: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Mean cross entropy per token, a scalar, and the next h; targets int64 [time, batch], the rest as above.

        Takes less time and memory than F.cross_entropy of the logits, and can be differentiated once.
        """
        if targets.shape != tokens.shape:
            raise ValueError(
                f"targets must be shaped like tokens, one per token, got {list(targets.shape)} for tokens "
                f"{list(tokens.shape)}."
            )
        features, last = self._features(tokens, hidden)
        return self.decoder.loss(features.flatten(0, 1), targets.flatten()), last

    def _features(self, tokens: Tensor, hidden: Tensor | None) -> tuple[Tensor, Tensor]:
        """What the decoder reads [time, batch, hidden], and the last h [batch, hidden]."""
        size = self.embedding.embedding_dim
        if tokens.dim() != 2 or tokens.numel() == 0:
            raise ValueError(f"tokens must be int64 [time, batch] and at least one, got {list(tokens.shape)}.")
        if hidden is None:
            hidden = self.embedding.weight.new_zeros(tokens.shape[1], size)
        if hidden.shape != (tokens.shape[1], size):
            raise ValueError(
                f"hidden must be [batch, hidden] = [{tokens.shape[1]}, {size}] for tokens {list(tokens.shape)}, "
                f"got {list(hidden.shape)}. Start a text with None, and a batch of another size too."
            )
        outputs, last = self.cell(self.dropout(self.embedding(tokens)), hidden)
        return self.dropout(outputs), last


def build(
    *, vocabulary: int, hidden: int = 300, nodes: int = 3, dropout: float = 0.5, normalised: bool = False
) -> RecurrentCellNetwork:
    """Build the language model."""
    return RecurrentCellNetwork(vocabulary, hidden=hidden, nodes=nodes, dropout=dropout, normalised=normalised)
