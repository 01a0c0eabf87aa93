"""What a search says at the end: proposals, their ranking, and statistics of BatchNorm."""

from advnas.answers.batch_norm import batch_statistics, evaluating, reestimate_batch_norm, track_norms
from advnas.answers.ranking import Scored, draw_different, rank_architectures

__all__ = [
    "Scored",
    "batch_statistics",
    "draw_different",
    "evaluating",
    "rank_architectures",
    "reestimate_batch_norm",
    "track_norms",
]
