"""Gates: how weights enter the network in front of the outputs of candidates, as cheaply as they can."""

from advnas.gates.gate import ActiveCandidate, GatePlacement, Node, copy_on_write, find_placement, last_norm
from advnas.gates.rivals import Lend, Rerun, Rival, add_zero_gates, at_hand
from advnas.gates.route import Route, Slot
from advnas.gates.trees import map_tensors

__all__ = [
    "ActiveCandidate",
    "GatePlacement",
    "Lend",
    "Node",
    "Rerun",
    "Rival",
    "Route",
    "Slot",
    "add_zero_gates",
    "at_hand",
    "copy_on_write",
    "find_placement",
    "last_norm",
    "map_tensors",
]
