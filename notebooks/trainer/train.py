"""Train a small decoder on any mesh:

torchrun --nproc-per-node 8 train.py --dp 2 --fs 2 --tp 2
"""

import os

import torch
import torch.distributed as dist
from checkpoint import load, save
from config import from_command_line
from context import cut_context, gather_attention, ring_attention
from data import batch, load_text, microbatches, zigzag
from experts import cut_experts
from fsdp import pieces_of, shard_model
from mesh import group_over, make_mesh
from model import Block, decoder
from optimizer import AdamW, norm_and_loss
from outer import Islands
from pipeline import Stage, shard_range
from replicas import Replicas
from survive import Quorum
from tensor import AllGather, Copy, ReduceScatter, Sum, cut_block, sum_copies


class Trainer:
    def __init__(self, config):
        self.config, self.mesh = config, make_mesh(config)
        self.text = load_text(config)
        stage = shard_range(config.layers + 2, self.mesh["pp"].get_local_rank(), config.pp)
        self.model = decoder(config, slice(*stage))
        for block in self.model:
            if isinstance(block, Block):
                self.cut(block)
        if config.sequence and config.tp > 1:
            sum_copies(self.model, self.mesh.get_group("tp"))
        self.replicas = Replicas(group_over(self.mesh, "dp", "ep", "cp"))
        self.expert_replicas = Replicas(group_over(self.mesh, "dp", "cp"))
        fs = self.mesh.get_group("fs")
        self.layers = shard_model(self.model, fs, self.replicas, self.expert_replicas)
        self.optimizer = AdamW([piece for layer in self.layers for piece in pieces_of(layer, self.mesh)], config)
        self.islands = Islands([layer.shard for layer in self.layers], config) if config.islands > 1 else None
        self.quorum = Quorum(self.state, config) if config.replicas > 1 else None
        self.stage = Stage(self.model, config, self.mesh.get_group("pp"), group_over(self.mesh, "pp"))

    def cut(self, block):
        if self.config.ep > 1:
            cut_experts(block, self.mesh.get_group("ep"))
        if self.config.tp > 1:
            operators = (AllGather, ReduceScatter) if self.config.sequence else (Copy, Sum)
            cut_block(block, self.mesh.get_group("tp"), *operators)
        if self.config.cp > 1:
            way = gather_attention if self.config.gather else ring_attention
            cut_context(block, zigzag(self.config.length, self.config.cp), self.mesh.get_group("cp"), way)

    @property
    def state(self):
        """All that a step changes on this rank, besides the number of steps."""
        moments = [t for states in self.optimizer.states.values() for t in states]
        return [layer.shard for layer in self.layers] + moments

    def step(self):
        """The loss of the whole batch, and the norm of its gradient."""
        loss = self.backward()
        while self.quorum and not self.quorum.agrees([loss, *(layer.gradient for layer in self.layers)]):
            self.optimizer.steps = self.quorum.regroup(self.optimizer.steps)
            loss = self.backward()
        norm, loss = norm_and_loss(self.optimizer.pieces, loss, copies=1 if self.config.sequence else self.config.tp)
        self.optimizer.step(norm)
        if self.islands:
            self.islands.meet(self.optimizer.steps)
        return loss, norm

    def backward(self):
        """This rank's share of the loss, with the gradients of this job's passages."""
        jobs, job = self.config.islands * self.config.replicas, self.config.island + self.config.replica
        tokens, targets = batch(self.text, self.optimizer.steps * jobs + job, self.config)
        self.begin()
        loss = self.stage.step(*(microbatches(t, self.config, self.mesh) for t in (tokens, targets)), self.last)
        self.replicas.wait()
        self.expert_replicas.wait()
        return loss

    def begin(self):
        for layer in self.layers:
            layer.gradient.zero_()
            layer.last = False

    def last(self):
        for layer in self.layers:
            layer.last = True


def main():
    config = from_command_line()
    if config.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if config.device == "cuda" else "gloo")
    trainer = Trainer(config)
    if config.save:
        load(config.save, trainer.optimizer)
    while trainer.optimizer.steps < config.steps:
        loss, norm = trainer.step()
        steps = trainer.optimizer.steps
        if dist.get_rank() == 0:
            of = f", replicas {trainer.quorum.members}" if trainer.quorum else ""
            print(f"step {steps}: loss {loss:.6f}, gradient {norm:.6f}{of}", flush=True)
        if config.save and steps % config.every == 0:
            save(config.save, trainer.optimizer)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
