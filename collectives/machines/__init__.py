"""Machines and published figures as data: what a message takes between two ranks, and who measured it.

from collectives.machines import cluster, gpu, machine, sweeps
gpu("H100").value("memory", "my script")        # bytes; gpus.csv has every figure of a GPU, with its source
cluster("H100", 64)                             # 8 nodes with a network card for each GPU
machine("DGX H100", 64)                         # 8 nodes, as machines.csv describes them; networks.csv has their networks
"""

from ..lazy import lazy

__all__ = lazy(
    __name__,
    {
        ".data_sheets": "DataSheet Dimension Quantity data_sheets records",
        ".gpu": "Generation Gpu gpu gpus",
        ".topology": "Gpus Level Machine Port Protocol flat",
        ".networks": "Network network networks",
        ".presets": "cluster efa fat_tree gpu_nodes links machine machines nvl72 nvlink_node pcie_node rails",
        ".sweeps": "Sweep sweeps",
    },
)
