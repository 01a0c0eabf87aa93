"""What does a training step of the recurrent cell cost, next to the same cell written naively and to an LSTM?

Time of one step (forward, loss, backward) and bytes kept for the backward pass, at the size of the Penn Treebank
search. `ours` is the derived cell with tanh on every edge. `naive` is the same function, with a product for every
weight of every edge at every step and F.cross_entropy on all logits. `lstm` is torch.nn.LSTM with the same
embedding, decoder and F.cross_entropy, and `lstm, our loss` takes the loss from our decoder. All are measured in
one run, interleaved, because machines change their speed from minute to minute.

    .venv/bin/python benchmarks/recurrent_speed.py --json
"""

import argparse
import json
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from advnas import SearchSpace
from advnas.randomness import generator, seed_of
from advnas.search.plan import saved_bytes
from advnas.spaces.recurrent_cell import Activation, Edge, RecurrentCellNetwork

Loss = Callable[[Tensor, Tensor], Tensor]


def main() -> None:
    options = parse_arguments()
    results = measure(options)
    if options.json:
        print(json.dumps(results, indent=1))
        return
    for name, row in results.items():
        print(f"{name:16s}", "  ".join(f"{key} {value:8.3f}" for key, value in row.items()))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--vocabulary", type=int, default=10_000)
    parser.add_argument("--hidden", type=int, default=300)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--length", type=int, default=35, help="steps of time")
    parser.add_argument("--repeats", type=int, default=5, help="the fastest of these counts")
    return parser.parse_args()


def measure(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """For every model: seconds of a step, and its time and kept bytes as ratios to ours."""
    text = torch.randint(options.vocabulary, (options.length + 1, options.batch), generator=generator(0))
    models = make_models(options)
    check_equal(models, text)
    bytes_kept = {name: saved_bytes(lambda model=model: step(model, text)) for name, model in models.items()}  # type: ignore[misc]
    fastest = dict.fromkeys(models, float("inf"))
    for _ in range(options.repeats):
        for name, model in models.items():
            fastest[name] = min(fastest[name], seconds(model, text))
    return {
        name: {
            "seconds": round(fastest[name], 3),
            "time_to_ours": round(fastest[name] / fastest["ours"], 3),
            "saved_bytes_to_ours": round(bytes_kept[name] / bytes_kept["ours"], 3),
        }
        for name in models
    }


def make_models(options: argparse.Namespace) -> dict[str, nn.Module]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(0))
        space = SearchSpace(RecurrentCellNetwork(options.vocabulary, hidden=options.hidden))
        ours = space.derive({decision.name: "tanh" for decision in space.decisions})
        assert isinstance(ours, RecurrentCellNetwork)
        return {
            "ours": Ours(ours),
            "naive": Naive(ours),
            "lstm": LSTM(ours, lambda features, targets: F.cross_entropy(ours.decoder(features), targets)),
            "lstm, our loss": LSTM(ours, ours.decoder.loss),
        }


class Ours(nn.Module):
    """The derived module, called like the others: tokens and targets in, loss out."""

    def __init__(self, network: RecurrentCellNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return self.network.loss(tokens, targets)[0]


class Naive(nn.Module):
    """The formulas as they stand, on the weights of ours; activations are all tanh."""

    def __init__(self, ours: RecurrentCellNetwork) -> None:
        super().__init__()
        self.embedding, self.decoder, self.dropout = ours.embedding, ours.decoder, ours.dropout
        self.hidden, self.nodes = ours.cell.hidden, ours.cell.nodes
        self.w_in_c, self.w_in_h = (linear(weight) for weight in ours.cell.weight.chunk(2))
        edges = [edge for edge in ours.cell.edges if isinstance(edge, Edge)]
        self.w_c = nn.ModuleDict({f"{edge.source}{edge.target}": linear(edge.carry) for edge in edges})
        self.w_h = nn.ModuleDict(
            {
                f"{edge.source}{edge.target}": linear(edge.activation.weight)
                for edge in edges
                if isinstance(edge.activation, Activation)
            }
        )

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        words = self.dropout(self.embedding(tokens))
        h = words.new_zeros(tokens.shape[1], self.hidden)
        outputs = []
        for x_e in words:
            h = self.step(x_e, h)
            outputs.append(h)
        logits = self.decoder(self.dropout(torch.stack(outputs)))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def step(self, x_e: Tensor, h: Tensor) -> Tensor:
        both = torch.cat([x_e, h], dim=1)
        x = [h + torch.sigmoid(self.w_in_c(both)) * (torch.tanh(self.w_in_h(both)) - h)]
        for target in range(1, self.nodes + 1):
            x.append(torch.stack([self.edge(x[source], source, target) for source in range(target)]).mean(0))
        return torch.stack(x[1:]).mean(0)

    def edge(self, x: Tensor, source: int, target: int) -> Tensor:
        c = torch.sigmoid(self.w_c[f"{source}{target}"](x))
        return x + c * (torch.tanh(self.w_h[f"{source}{target}"](x)) - x)


def linear(weight: Tensor) -> nn.Linear:
    """A layer without bias that has these weights."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight = nn.Parameter(weight.detach().clone())
    return layer


class LSTM(nn.Module):
    """The same language model around torch's LSTM."""

    def __init__(self, ours: RecurrentCellNetwork, loss: Loss) -> None:
        super().__init__()
        self.embedding, self.decoder, self.dropout = ours.embedding, ours.decoder, ours.dropout
        self.lstm = nn.LSTM(ours.cell.hidden, ours.cell.hidden)
        self._loss = loss

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        outputs, _ = self.lstm(self.dropout(self.embedding(tokens)))
        return self._loss(self.dropout(outputs).flatten(0, 1), targets.flatten())


def check_equal(models: dict[str, nn.Module], text: Tensor) -> None:
    """Ours and the naive one must be one function; nothing else is worth comparing."""
    with torch.no_grad():
        ours, naive = (models[name].eval()(text[:-1], text[1:]) for name in ("ours", "naive"))
    assert torch.allclose(ours, naive, rtol=1e-5), f"ours gives {ours}, the naive version {naive}"
    for model in models.values():
        model.train()


def step(model: nn.Module, text: Tensor) -> None:
    model.zero_grad(set_to_none=True)
    model(text[:-1], text[1:]).backward()


def seconds(model: nn.Module, text: Tensor) -> float:
    start = time.perf_counter()
    step(model, text)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
