"""What a schedule costs: on this machine, on a node of GPUs, on a hundred thousand ranks.

from helpers.network import cost, nvlink_node, outline
from helpers.schedule import ring_all_reduce
cost(ring_all_reduce(8), 2**30, nvlink_node("H100"))
cost(outline(ring_all_reduce, 16384), 2**30, rails(2048))      # without making the schedule
"""

from .calibration import Row, Table, calibration, in_switch_seconds
from .cost import Cost, Price, algbw, busbw, cost, price
from .fit import SIZES, Fit, exchange, fit, ping_pong
from .machine import Level, Machine, Port, Protocol, flat
from .machines import fat_tree, loopback, nvl72, nvlink_node, pcie_node, rails
from .outline import Outline, Phase, outline

__all__ = [
    "Cost",
    "Fit",
    "Level",
    "Machine",
    "Outline",
    "Phase",
    "Port",
    "Price",
    "Protocol",
    "Row",
    "SIZES",
    "Table",
    "algbw",
    "busbw",
    "calibration",
    "cost",
    "exchange",
    "fat_tree",
    "fit",
    "flat",
    "in_switch_seconds",
    "loopback",
    "nvl72",
    "nvlink_node",
    "outline",
    "pcie_node",
    "ping_pong",
    "price",
    "rails",
]
