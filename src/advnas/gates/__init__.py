"""Gates: how weights enter the network in front of the outputs of candidates, as cheaply as they can."""

from advnas.gates.gate import ActiveCandidate, Node
from advnas.gates.placement import GatePlacement, find_placement
from advnas.gates.rivals import Lend, Rerun, Rival, add_zero_gates, at_hand
from advnas.gates.route import Route, Slot, Trace
from advnas.gates.trees import is_weighable, map_parts, map_tensors, parts_of, strange_leaf, tensors_in

__all__ = [
    "ActiveCandidate",
    "GatePlacement",
    "Lend",
    "Node",
    "Rerun",
    "Rival",
    "Route",
    "Slot",
    "Trace",
    "add_zero_gates",
    "at_hand",
    "find_placement",
    "is_weighable",
    "map_parts",
    "map_tensors",
    "parts_of",
    "strange_leaf",
    "tensors_in",
]
