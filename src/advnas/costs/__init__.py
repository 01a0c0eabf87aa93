"""What an operation costs, and what that makes an architecture cost: exactly, expected, and at most."""

from advnas.costs.amounts import parse_amount
from advnas.costs.cost import Cost
from advnas.costs.expected import Expected
from advnas.costs.knapsack import Infeasible, Limit, cheapest, dearest, most_valuable
from advnas.costs.latency import latency, whole_latency
from advnas.costs.memory import memory
from advnas.costs.multiply_adds import multiply_adds
from advnas.costs.observation import Arguments
from advnas.costs.parameters import parameters
from advnas.costs.table import table
from advnas.structure import Condition, operations_of

__all__ = [
    "Arguments",
    "Condition",
    "Cost",
    "Expected",
    "Infeasible",
    "Limit",
    "cheapest",
    "dearest",
    "latency",
    "memory",
    "most_valuable",
    "multiply_adds",
    "operations_of",
    "parameters",
    "parse_amount",
    "table",
    "whole_latency",
]
