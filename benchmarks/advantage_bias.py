"""Where do the approximate advantage, the exact one and REINFORCE push theta, and does training change that?

With the weights of a parent network after shorter and longer training, the same draws on the same minibatches give
all three gradient estimates. Their means over many draws show what is bias, their standard errors what is chance.
Printed for every operation, summed over the six edges of the NAS-Bench-201 cell, and for every edge, summed over
both convolutions:

    g_ij = E[A_i (a_ij - mu_j)]         positive: theta moves towards operation j at edge i

next to the same with the known test accuracy of every cell as reward. Draws are uniform, or, with --convolutions P,
convolutions have the probability P at every edge, as later in a search that likes them.

    .venv/bin/python benchmarks/advantage_bias.py --epochs 12 48 --draws 600 --json
    .venv/bin/python benchmarks/advantage_bias.py --weights F/warmup/0.pt --seed 0 --convolutions 0.9 --json
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from advnas import Draw, Search
from advnas.paper.cifar10 import PRESETS, Cifar10
from advnas.randomness import generator
from advnas.records.checkpoints import load_state
from advnas.search import LossOf
from advnas.tables import nasbench201
from advnas.tasks.data_folder import data_folder

Row = dict[str, list[float]]


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    folder = data_folder(options.data_folder)
    pushes: dict[str, dict[str, Row]] = {}
    for epochs in options.epochs if options.weights is None else [PRESETS["laptop"].warmup]:
        settings = replace(PRESETS["laptop"], zero=options.zero, epochs=2 * epochs, warmup=epochs)
        experiment = Cifar10(settings, folder)
        search = parent(experiment, options.seed, options.weights)
        prefer_convolutions(search, options.convolutions)
        pushes[f"{epochs} epochs"] = measure(experiment, search, options.seed, options.draws)
    pushes["table"] = {"accuracy": from_table(folder, search)}
    if options.json:
        print(json.dumps(pushes, indent=1))
    else:
        show(pushes)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, nargs="+", default=[12, 48], help="of training with uniform draws")
    parser.add_argument("--draws", type=int, default=600)
    parser.add_argument("--seed", type=int, default=50)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--weights", type=Path, help="of a study's warm-up, instead of training")
    parser.add_argument("--convolutions", type=float, default=None, metavar="P")
    parser.add_argument("--zero", action="store_true", help="with the zero operation")
    parser.add_argument("--data-folder", type=Path, default=None)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def parent(experiment: Cifar10, seed: int, weights: Path | None) -> Search:
    """A network after the study's warm-up."""
    if weights is not None:
        search = experiment.make_search("random", seed)
        search.load_weights(load_state(weights)["weights"])
        return search
    search, data = experiment.make_search("random", seed), experiment.make_data(seed)
    while search.weight_steps < experiment.length.warmup_turns:
        step = search.turn(*data.losses(search))[0]
        if search.weight_steps % experiment.length.per_epoch == 0:
            print(f"step {search.weight_steps}, loss {step.loss:.3f}", file=sys.stderr)
    return search


def prefer_convolutions(search: Search, probability: float | None) -> None:
    """Give both convolutions together this probability at every edge."""
    operations = search.space.decisions[0].operations
    likely = torch.tensor(["conv" in name for name in operations])
    if probability is not None:
        row = torch.where(likely, probability / likely.sum(), (1 - probability) / (~likely).sum())
        search.theta.assign(row.log().expand(len(search.space), -1))


def measure(experiment: Cifar10, search: Search, seed: int, draws: int) -> dict[str, Row]:
    """[mean push, its standard error] of every operation, for every estimator."""
    search.model.requires_grad_(False)
    random, data = generator(seed, draws), experiment.make_data(seed)
    samples: dict[str, list[Tensor]] = {"advantage": [], "exact_advantage": [], "reinforce": []}
    rewards: list[Tensor] = []
    for number in range(draws):
        search.progress.architecture_steps = number  # the validation minibatch that is due
        loss_of = data.losses(search)[1]()
        chosen = search.distribution.sample(random)
        reward, approximate, exact = credits(search, chosen, loss_of)
        baseline = torch.stack(rewards).mean() if rewards else reward
        rewards.append(reward)
        score = search.distribution.score(chosen)
        for name, credit in zip(
            samples, (approximate, exact, (reward - baseline).expand(len(chosen))), strict=True
        ):
            samples[name].append(credit.unsqueeze(-1) * score)
        if (number + 1) % 100 == 0:
            print(f"{number + 1} of {draws} draws", file=sys.stderr)
    return {name: summarise(torch.stack(pushes), search) for name, pushes in samples.items()}


def credits(search: Search, chosen: Tensor, loss_of: LossOf) -> tuple[Tensor, Tensor, Tensor]:
    """The reward, the approximate advantages [decisions] and the exact ones, on one minibatch."""
    draw = Draw.gated(chosen)
    with search.space.running(draw):
        loss = loss_of(search.model)
        (slope,) = torch.autograd.grad(loss, draw.weights)
    without = []
    for knock_out in draw.knock_outs():
        with torch.no_grad(), search.space.running(knock_out):
            without.append(loss_of(search.model))
    return -loss.detach(), -(slope * chosen).sum(-1), torch.stack(without) - loss.detach()


def summarise(pushes: Tensor, search: Search) -> Row:
    """pushes: [draws, decisions, operations]. Of every operation, and of the convolutions at every edge."""
    operations = search.space.decisions[0].operations
    likely = torch.tensor(["conv" in name for name in operations])
    named = dict(zip(operations, pushes.sum(1).unbind(-1), strict=True))
    for decision, push in zip(search.space.decisions, pushes[..., likely].sum(-1).unbind(1), strict=True):
        named[decision.name] = push
    return {name: [push.mean().item(), (push.std() / len(push) ** 0.5).item()] for name, push in named.items()}


def from_table(folder: Path, search: Search) -> Row:
    """The same where the reward is the cell's test accuracy in percent; exact, over all cells of the space."""
    table = nasbench201.load(nasbench201.find(folder))
    operations = search.space.decisions[0].operations
    cells = [nasbench201.from_string(cell) for cell in nasbench201.all_cells()]
    cells = [cell for cell in cells if set(cell.values()) <= set(operations)]
    accuracy = torch.tensor([table.accuracy(cell) for cell in cells])
    chosen = torch.stack([search.space.one_hot(cell) for cell in cells])
    probability = (chosen * search.distribution.probabilities).sum(-1).prod(-1)
    pushes = accuracy[:, None, None] * search.distribution.score(chosen) * probability[:, None, None] * len(cells)
    return {name: [mean, 0.0] for name, (mean, _) in summarise(pushes, search).items()}


def show(pushes: dict[str, dict[str, Row]]) -> None:
    for stage, rows in pushes.items():
        print(stage)
        for name, row in rows.items():
            cells = (f"{operation} {mean:+.4f} ± {error:.4f}" for operation, (mean, error) in row.items())
            print(f"  {name:16s}", "   ".join(cells))


if __name__ == "__main__":
    main()
