# needs: deepspeed
"""A DeepSpeed loop: its own init_distributed, the engine's backward and step, optimizer states and gradients in shards."""

import argparse
import logging

import torch
import torch.distributed as dist

logging.disable(logging.WARNING)  # lines with the time in them
import deepspeed  # noqa: E402


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage", type=int, default=2)
    parser.add_argument("--local_rank", type=int, default=-1)
    stage = parser.parse_args().stage
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # its all_reduce in shared memory: needs a compiler
    deepspeed.init_distributed("gloo")
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "zero_optimization": {"stage": stage, "reduce_bucket_size": 64, "allgather_bucket_size": 64},
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 1.0,
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    torch.manual_seed(dist.get_rank())
    for _ in range(6):
        loss = engine(torch.randn(2, 8)).square().mean()
        engine.backward(loss)
        engine.step()
        print(loss.item().hex(), flush=True)
    engine.save_checkpoint("checkpoint", tag="last")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
