"""What a search says at the end: proposals, their ranking and refinement, and what the shared weights know."""

from advnas.answers.agreement import Agreement, agreement
from advnas.answers.batch_norm import reestimate_batch_norm, track_norms
from advnas.answers.finalists import Contest, Finalists, finalists, halve
from advnas.answers.front import FrontPoint, front
from advnas.answers.measured import Measured, measure_answer
from advnas.answers.ranking import Scored, draw_different, rank_architectures
from advnas.answers.refinement import Refined, refine
from advnas.answers.shared_loss import SharedLoss
from advnas.answers.uniform import Halving, Ranked, rank_uniform
from advnas.modes import batch_statistics, evaluating

__all__ = [
    "Agreement",
    "Contest",
    "Finalists",
    "FrontPoint",
    "Halving",
    "Measured",
    "Ranked",
    "Refined",
    "Scored",
    "SharedLoss",
    "agreement",
    "batch_statistics",
    "draw_different",
    "evaluating",
    "finalists",
    "front",
    "halve",
    "measure_answer",
    "rank_architectures",
    "rank_uniform",
    "reestimate_batch_norm",
    "refine",
    "track_norms",
]
