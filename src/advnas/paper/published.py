"""Numbers that the paper prints, and what must be read along with them."""

from collections.abc import Mapping

Printed = Mapping[str, tuple[float, float]]
"""Mean and standard deviation by column of the report's table."""

_CELLS = ("argmax_accuracy", "argmax_params", "process_best_accuracy", "process_best_params")
_PERPLEXITIES = ("validation_perplexity", "test_perplexity", "params")


def _cells(*pairs: tuple[float, float]) -> Printed:
    return dict(zip(_CELLS, pairs, strict=False))


def _perplexities(*pairs: tuple[float, float]) -> Printed:
    return dict(zip(_PERPLEXITIES, pairs, strict=True))


TABLES: Mapping[tuple[str, bool], Mapping[str, Printed]] = {
    ("cifar10", False): {
        "reinforce": _cells((93.01, 0.47), (0.67, 0.18), (92.69, 0.52), (0.68, 0.20)),
        "parsec": _cells((93.68, 0.12), (1.39, 0.20), (92.51, 0.65), (0.47, 0.12)),
        "proxyless": _cells((93.22, 0.08), (0.74, 0.10)),
        "gdas": _cells((93.46, 0.13), (1.24, 0.10), (92.53, 0.98), (0.62, 0.20)),
        "advantage": _cells((93.76, 0.00), (1.53, 0.00), (93.29, 0.21), (0.94, 0.11)),
    },
    ("cifar10", True): {
        "reinforce": _cells((65.15, 39.00), (0.54, 0.08), (91.40, 0.45), (0.49, 0.10)),
        "parsec": _cells((92.67, 0.55), (0.59, 0.00), (91.75, 0.57), (0.48, 0.17)),
        "proxyless": _cells((10.00, 0.00), (0.07, 0.00)),
        "gdas": _cells((88.62, 0.00), (0.34, 0.00), (92.82, 0.71), (0.47, 0.14)),
        "advantage": _cells((93.63, 0.18), (1.46, 0.10), (93.18, 0.19), (0.86, 0.20)),
    },
    ("ptb", True): {
        "reinforce": _perplexities((99.48, 1.51), (95.50, 1.73), (7.40, 0.07)),
        "parsec": _perplexities((99.68, 1.49), (95.51, 1.01), (7.33, 0.09)),
        "proxyless": _perplexities((95.12, 0.22), (90.76, 0.23), (7.33, 0.09)),
        "gdas": _perplexities((99.28, 2.00), (95.40, 2.01), (7.33, 0.09)),
        "advantage": _perplexities((94.90, 0.18), (91.18, 0.13), (7.44, 0.00)),
    },
}
"""[study, with zero operations][strategy]. ProxylessNAS has no process best on CIFAR-10 there."""

NOTES: Mapping[str, Mapping[str, str]] = {
    "ptb": {
        "parameters": (
            "The paper's parameters cannot be compared with ours, which are all that the retrained model has: "
            "its column is 6.0 + 0.18 (k + 2) million for k edges that are not identity."
        ),
        "answer": (
            "The answer is the one of these that the paper takes from the strategy. It was retrained from scratch, "
            "and has the weights of its best epoch on the validation text. Perplexity: lower is better."
        ),
        "cells": (
            "The answer of every run: the cell that was retrained, or of an unfinished run would be by now. Arrows "
            "are in the colour of their activation. Dotted arrows are zero: only what the edge carries on of its "
            "input passes."
        ),
    },
}
"""[study][what]: sentences for the report of a study."""
