# needs: torchft
"""Each rank is a replica of torchft's: a quorum in each step, and process groups that torch.distributed doesn't know."""

import datetime
import logging
import os

import torch
import torch.distributed as dist
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.coordination import LighthouseServer

logging.getLogger("torchft").setLevel(logging.CRITICAL)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=world, join_timeout_ms=60000) if rank == 0 else None
    address = [lighthouse and f"http://127.0.0.1:{lighthouse.address().rpartition(':')[2]}"]
    dist.broadcast_object_list(address, 0)
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 2)
    limit = datetime.timedelta(seconds=60)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=limit), load_state_dict=net.load_state_dict, state_dict=net.state_dict,
        min_replica_size=world, use_async_quorum=False, timeout=limit, quorum_timeout=limit, connect_timeout=limit,
        rank=0, world_size=1, store_addr="127.0.0.1", store_port=store.port, lighthouse_addr=address[0],
        replica_id=f"replica{rank}", hostname="127.0.0.1", init_sync=False,
    )  # fmt: skip
    model = DistributedDataParallel(manager, net)
    optimizer = Optimizer(manager, torch.optim.SGD(net.parameters(), lr=0.1))
    for step in range(4):
        torch.manual_seed(step * world + rank)
        optimizer.zero_grad()
        loss = model(torch.randn(3, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
        print(rank, step, repr(loss.item()), manager.num_participants(), manager.current_step(), flush=True)
    dist.barrier()
    manager.shutdown(wait=False)
    dist.barrier()
    if lighthouse:
        lighthouse.shutdown()
    dist.destroy_process_group()
    os._exit(0)


main()
