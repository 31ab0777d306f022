"""One rank raises, out of its own finally; the others wait for it. Exit code and traceback stay the program's own."""

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(2))
    try:
        if dist.get_rank() == 1:
            raise ValueError("no such layer")
        dist.barrier()
    finally:
        print("cleaned up", flush=True)


main()
