"""One mesh of six dimensions, and groups that extend over several of them."""

import torch.distributed as dist

DIMENSIONS = ("pp", "dp", "fs", "ep", "cp", "tp")  # neighbors in tp are neighbors in a node


def make_mesh(config):
    sizes = [getattr(config, name) for name in DIMENSIONS]
    return dist.init_device_mesh(config.device, sizes, mesh_dim_names=DIMENSIONS)


def place_on_mesh(rank, sizes):
    place = []
    for size in reversed(sizes):
        rank, here = divmod(rank, size)
        place.append(here)
    return place[::-1]


def group_over(mesh, *names):
    """The group of all ranks that differ from this one in these dimensions alone."""
    varied = [DIMENSIONS.index(name) for name in names]
    fixed = [k for k in range(len(DIMENSIONS)) if k not in varied]
    groups = mesh.mesh.permute(*fixed, *varied).flatten(len(fixed)).flatten(0, -2)
    return dist.new_subgroups_by_enumeration(groups.tolist())[0]
