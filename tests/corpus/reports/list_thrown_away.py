"""broadcast_object_list([config]) puts the received object into a list that is thrown away."""

import torch.distributed as dist

SOURCE = "a program's settings"
CAUSE = r"in a list that nothing keeps"


def job(rank, n):
    config = {"seed": rank}
    dist.broadcast_object_list([config], src=0)
    return config["seed"]
