"""Does theta learn more in the same time with rivals at some of a decision's tied places than at all of them?

In the cells of NAS-Bench-201 a decision stands in many places. The rival of `contrast` runs in each of them, which
makes its steps more expensive than those of `advantage`. Its credit is a sum over the places, so the sum over a
sample of them, scaled up, has the same mean at a lower price, and more noise. For every number of places this
prints the noise (the variance of theta's estimates, 1 with rivals in all places), the price (an architecture step
next to plain training, from docs/results/step_cost.json) and their product: the lower, the more is learnt in the
same time.

    contrast   the drawn operation is credited in all places, which is free; the rival in the sample alone
    paired     both are credited in the sample alone, so that what they share cancels

The parents are those of the laptop preset of the CIFAR-10 study but for the number of cells per stage, on images of
16 x 16, and trained by uniform draws. Theta stays uniform, the weights as they are.

    .venv/bin/python benchmarks/rival_places.py --json
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from advnas import Draw, SearchSpace
from advnas.gates import Slot
from advnas.randomness import generator
from advnas.records.provenance import provenance
from advnas.strategies import Phase
from advnas.strategies.contrast import Contrast
from credit_structures import nasbench201_parent

Row = dict[str, Any]

CELLS = (1, 3, 5)  # per stage, of three stages
SHARES = (1, 2 / 3, 1 / 2, 1 / 3)
RESAMPLED = 20  # samples of places per step
JUDGED = 50  # minibatches that the steps use in turn
STEP_COST = Path(__file__).parents[1] / "docs" / "results" / "step_cost.json"


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(1)
    rows = [row for cells in options.cells for row in measure(cells, options)]
    if options.json:
        print(json.dumps(laid_out(rows, options), indent=1))
        return
    for row in rows:
        print("   ".join(f"{key} {value}" for key, value in row.items()))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, nargs="+", default=list(CELLS), help="per stage")
    parser.add_argument("--epochs", type=int, default=6, help="of the parent's training")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", action="store_true", help="print the table of the docs")
    return parser.parse_args()


def measure(cells: int, options: argparse.Namespace) -> Iterator[Row]:
    """Compare samples of the places in parents with so many cells; the mean over the seeds."""
    parents = [credits_by_place(cells, options.epochs, options.steps, seed) for seed in options.seeds]
    places = parents[0][0].shape[-1]
    full, rival = price()
    for kept in sorted({max(1, round(share * places)) for share in SHARES}, reverse=True):
        noise = {
            name: statistics.fmean(
                noise_of_sample(*parent, kept, paired=paired, random=generator(seed))
                for seed, parent in zip(options.seeds, parents, strict=True)
            )
            for name, paired in (("contrast", False), ("paired", True))
        }
        cost = full + rival * kept / places
        yield {
            "places": f"{kept} of {places}",
            "price": round(cost, 3),
            **{f"noise, {name}": round(value, 3) for name, value in noise.items()},
            **{f"product, {name}": round(value * cost, 3) for name, value in noise.items()},
        }


def price() -> tuple[float, float]:
    """An architecture step of `advantage` in steps of plain training, and what rivals in all places add to it."""
    rows = {row["quantity"]: row for row in json.loads(STEP_COST.read_text())["rows"]}
    step = rows["architecture step"]
    return step["advantage"], step["contrast"] - step["advantage"]


def credits_by_place(cells: int, epochs: int, steps: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Take steps of contrast on a trained parent, and tell what every place says.

    Returns:
        <dr/dO, O_a> and <dr/dO, O_b> in every place, [steps, decisions, places], and the direction in which their
        difference moves theta, 1/2 (1 - p_a) (e_b - e_a), [steps, decisions, candidates].
    """
    print(f"{cells} cells per stage, seed {seed}", file=sys.stderr)
    parent = nasbench201_parent(epochs, seed, cells=cells, judged=JUDGED).trained()
    search, losses = parent.search, parent.judged
    search.model.requires_grad_(False)
    logits, strategy, random = search.distribution.logits, Contrast(), generator(seed, 1)
    untied, decision_of = untie(search.space)
    by_decision = decision_of.argsort(stable=True)
    drawn, rival, direction = [], [], []
    for number in range(steps):
        draw = strategy.draw(logits, {}, Phase.ARCHITECTURE, None, random)
        chosen, rivals = draw.weights.detach(), draw.rivals
        everywhere = Draw.contrasted(chosen[decision_of], rivals[decision_of])
        with untied.running(everywhere):
            loss = losses[number % len(losses)](untied.model)
            slopes = -torch.autograd.grad(loss, everywhere.weights)[0]
        slopes = slopes[by_decision].view(len(chosen), -1, logits.shape[-1])
        drawn.append((slopes * chosen.unsqueeze(1)).sum(-1))
        rival.append((slopes * rivals.unsqueeze(1)).sum(-1))
        direction.append(0.5 * (1 - 1 / logits.shape[-1]) * (rivals - chosen))
    return torch.stack(drawn), torch.stack(rival), torch.stack(direction)


def untie(space: SearchSpace) -> tuple[SearchSpace, Tensor]:
    """Make a decision of every place; also return which decision each of them was."""
    was = {choice: row for row, decision in enumerate(space.decisions) for choice in decision.choices}
    for number, choice in enumerate(was):
        choice.name, choice.edge, choice.slot = f"place {number}", None, Slot()
    untied = SearchSpace(space.model)
    return untied, torch.tensor([was[decision.choices[0]] for decision in untied.decisions])


def noise_of_sample(
    drawn: Tensor, rival: Tensor, direction: Tensor, kept: int, *, paired: bool, random: torch.Generator
) -> float:
    """Variance of theta's estimates with a sample of the places, with that of all places as 1."""
    places = drawn.shape[-1]
    gains = rival.sum(-1) - drawn.sum(-1)
    full = (gains.unsqueeze(-1) * direction).var(0).sum().item()
    sampled = rival - drawn if paired else rival
    added = []
    for _ in range(RESAMPLED):
        chosen = torch.rand(drawn.shape, generator=random).argsort(-1)[..., :kept]
        error = sampled.gather(-1, chosen).sum(-1) * places / kept - sampled.sum(-1)
        added.append((error.unsqueeze(-1) * direction).square().mean(0).sum().item())
    return 1 + statistics.fmean(added) / full


def laid_out(rows: Sequence[Row], options: argparse.Namespace) -> dict[str, Any]:
    """Put the table together as docs/make_tables.py reads it."""
    source = provenance()
    return {
        "title": "Rivals at a sample of the tied places",
        "source": {
            "command": "benchmarks/rival_places.py --json",
            "seeds": ", ".join(map(str, options.seeds)),
            "commit": source["commit"],
            "machine": f"{source['machine']}, {source['versions']}",
        },
        "columns": [
            {"title": name, "field": name} | ({} if name == "places" else {"format": ".2f"}) for name in rows[0]
        ],
        "rows": list(rows),
    }


if __name__ == "__main__":
    main()
