"""What a search says at the end: proposals, their ranking, and statistics of BatchNorm."""

from advnas.answers.batch_norm import batch_statistics, evaluating, reestimate_batch_norm, track_norms
from advnas.answers.ranking import Scored, draw_different, rank_architectures
from advnas.answers.uniform import Halving, Ranked, rank_uniform

__all__ = [
    "Halving",
    "Ranked",
    "Scored",
    "batch_statistics",
    "draw_different",
    "evaluating",
    "rank_architectures",
    "rank_uniform",
    "reestimate_batch_norm",
    "track_norms",
]
