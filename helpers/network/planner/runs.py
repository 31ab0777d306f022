"""Published training runs: what was divided how, and how long a step took.  check() holds the planner to them.

Each source names its table.  Where it leaves out what the planner must know, the note says what is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator

from ..machine import Machine
from .division import Division
from .memory import Memory, memory
from .shape import Shape, shape
from .step import Overlap, Step, cluster, step

NARAYANAN = "Narayanan et al. 2021, arXiv 2104.04473, table {}"
KORTHIKANTI = (
    "Korthikanti et al. 2022, arXiv 2205.05198, table 5; its MFU also in github.com/NVIDIA/Megatron-LM, README.md"
)
MEGASCALE = "Jiang et al. 2024, MegaScale, arXiv 2402.15627, table 2"
BIGSCIENCE = "github.com/bigscience-workshop/bigscience, train/tr11-176B-ml/README.md"
LLAMA = "Llama Team 2024, arXiv 2407.21783, table 4"
FOUNDRY = "github.com/mosaicml/llm-foundry, commit 061f2c7, scripts/train/benchmarking/README.md"
TITAN_A100 = "github.com/pytorch/torchtitan, commit 0413364, docs/performance.md"
TITAN_H100 = (
    "github.com/pytorch/torchtitan, commit 31a17bf, benchmarks/llama3_h100_202412_torchtitan.md, tables 1 and 3"
)
DGXC = "github.com/NVIDIA/dgxc-benchmarking, commit 85380ff, llama3.1/README.md and nemotron/README.md"

FITTED = "fitted"  # a constant of step.py was taken from this very row


@dataclass(frozen=True)
class Program:
    """What the program of a run does, beside its division.

    flash: one kernel for attention.  overlap: what it computes meanwhile.
    """

    flash: bool = True
    overlap: Overlap = Overlap()


WAITING = Program(False, Overlap(0, 0, 0, 0))  # Megatron-LM of 2021 and 2022: every message is waited for
MEGATRON = Program(False, Overlap(0, 1, 1, 1))  # of 2023: messages of data and pipeline hide
SHARDED = Program(True, Overlap(0, 1, 1, 1))  # FullyShardedDataParallel: the next layer is gathered meanwhile
OVERLAPPED = Program(True, Overlap(0.75, 1, 1, 1))  # of 2024 on: tensor parallel products in pieces, sent meanwhile


@dataclass(frozen=True)
class Published:
    """One run.  seconds: of a step, as published or as it follows from what is."""

    what: str
    model: Shape
    division: Division
    batch: int
    machine: Machine
    seconds: float
    source: str
    program: Program = SHARDED
    role: str = ""
    note: str = ""

    def predict(self) -> Step:
        how = self.program
        return step(self.model, self.division, self.batch, self.machine, flash=how.flash, overlap=how.overlap)


@dataclass(frozen=True)
class Allocated:
    """What a run's log says of a GPU's memory: bytes between the steps, and at most."""

    what: str
    division: Division
    batch: int
    between: float
    most: float
    source: str = DGXC

    def predict(self) -> Memory:
        return memory(shape(self.what), self.division, self.batch)


ALLOCATED = (
    Allocated("Llama 3 8B", Division(4, context=2), 128, 44271689728, 70833405952),
    Allocated("Nemotron-4 15B", Division(32, 2, microbatch=2), 256, 34466545664, 72972500992),
)


def _narayanan() -> Iterator[Published]:
    rows = [  # name, GPUs, tensor, pipeline, chunks, microbatch, batch, teraFLOP/s a GPU, role
        ("GPT 1.7B", 32, 1, 1, 1, 4, 512, 137, FITTED),
        ("GPT 3.6B", 64, 2, 1, 1, 4, 512, 138, ""),
        ("GPT 7.5B", 128, 4, 1, 1, 4, 512, 142, ""),
        ("GPT 18B", 256, 8, 1, 1, 4, 1024, 135, FITTED),
        ("GPT 39B", 512, 8, 2, 2, 1, 1536, 138, ""),
        ("GPT 76B", 1024, 8, 4, 3, 1, 1792, 140, ""),
        ("GPT 146B", 1536, 8, 8, 2, 1, 2304, 148, FITTED),
        ("GPT 310B", 1920, 8, 16, 2, 1, 2160, 155, ""),
        ("GPT 530B", 2520, 8, 35, 3, 1, 2520, 163, ""),
        ("GPT 1T", 3072, 8, 64, 2, 1, 3072, 163, ""),
    ]
    note = "microbatch and chunks are not published; {} and {} are assumed"
    for name, gpus, tensor, pipeline, chunks, microbatch, batch, teraflops, role in rows:
        division = Division(gpus // (tensor * pipeline), tensor, pipeline, 1, 0, False, chunks, microbatch, "full")
        yield _counted(name, division, batch, teraflops, NARAYANAN.format(1), role, note.format(microbatch, chunks))
    for name, pipeline, batch, rates in (
        ("GPT 175B", 12, 1536, {384: 153, 768: 149, 1536: 141}),
        ("GPT 530B", 35, 2240, {560: 171, 1120: 167, 2240: 159}),
    ):
        for gpus, teraflops in rates.items():
            division = Division(gpus // (8 * pipeline), 8, pipeline, 1, 0, False, 1, 1, "full")
            yield _counted(name, division, batch, teraflops, NARAYANAN.format(2), "", "no chunks are assumed")
    for name, batch, gpus, microbatch, teraflops in (
        ("GPT 175B", 1536, 384, 4, 144),
        ("GPT 175B", 1536, 768, 2, 88),
        ("GPT 175B", 1536, 1536, 1, 44),
        ("GPT 530B", 2560, 640, 4, 138),
        ("GPT 530B", 2240, 1120, 2, 98),
        ("GPT 530B", 2240, 2240, 1, 48),
    ):
        division = Division(gpus, shard=3, sequence=False, microbatch=microbatch, recompute="full")
        note = "DeepSpeed of 2021: far from the network's bandwidth"
        yield _counted(name, division, batch, teraflops, NARAYANAN.format(2), "", note, Program(False))


def _counted(name, division, batch, teraflops, source, role, note, program=WAITING) -> Published:
    """A run whose FLOP/s count the recomputed forward."""
    model = shape(name)
    seconds = model.recomputed_flops() * model.length * batch / (teraflops * 1e12 * division.gpus)
    machine = cluster("A100", division.gpus, 25e9)
    return Published(name, model, division, batch, machine, seconds, source, program, role, note)


def _korthikanti() -> Iterator[Published]:
    for name, pipeline, chunks, microbatch, batch, full, selective in (
        ("GPT 22B", 1, 1, 4, 4, 1.42, 1.10),
        ("GPT 175B", 8, 3, 1, 64, 18.13, 13.75),
        ("GPT 530B", 35, 3, 1, 280, 49.05, 37.83),
        ("GPT 1T", 64, 1, 1, 512, 94.42, 71.49),
    ):
        for recompute, seconds in (("full", full), ("selective", selective)):
            parts = Division(1, 8, pipeline, 1, 0, recompute == "selective", chunks, microbatch, recompute)
            machine = cluster("A100", 8 * pipeline, 25e9)
            role = FITTED if name == "GPT 175B" else ""
            note = "the seconds are from memory of the paper" + "; the README's MFU agrees" * (recompute == "selective")
            yield Published(name, shape(name), parts, batch, machine, seconds, KORTHIKANTI, WAITING, role, note)


def _megascale() -> Iterator[Published]:
    model = shape("MegaScale 175B")
    for who, program, recompute, times in (
        ("Megatron-LM", MEGATRON, "selective", {256: 40.0, 512: 21.2, 768: 15.2, 1024: 11.9, 3072: 29.02, 6144: 14.78, 8192: 12.24, 12288: 8.57}),
        ("MegaScale", OVERLAPPED, "none", {256: 32.0, 512: 16.5, 768: 11.5, 1024: 8.9, 3072: 23.66, 6144: 12.21, 8192: 9.56, 12288: 6.34}),
    ):  # fmt: skip
        for gpus, seconds in times.items():
            batch = 768 if gpus <= 1024 else 6144
            division = Division(gpus // 64, 8, 8, chunks=6, recompute=recompute)
            machine = cluster("A100", gpus, 25e9)
            yield Published(f"175B, {who}", model, division, batch, machine, seconds, MEGASCALE, program)


def _llama() -> Iterator[Published]:
    for gpus, context, length, batch, teraflops in (
        (8192, 1, 8192, 2048, 430),
        (16384, 1, 8192, 2048, 400),
        (16384, 16, 131072, 128, 380),
    ):
        model = shape("Llama 3 405B").with_(length=length)
        division = Division(gpus // (128 * context), 8, 16, context, shard=2, chunks=8)
        machine = cluster("H100", gpus)
        seconds = model.flops(causal=True) * length * batch / (teraflops * 1e12 * gpus)
        note = "8 chunks are assumed, and that the FLOP/s count the causal half of attention"
        yield Published("Llama 3 405B", model, division, batch, machine, seconds, LLAMA, SHARDED, "", note)


def _foundry() -> Iterator[Published]:
    """Every row of 1B parameters and more on 80 GB GPUs, bf16, sequences of 2048 tokens."""
    h100 = [  # model, GPUs, microbatch, batch, tokens/s, recomputed, role
        ("MPT 70B", 64, 8, 2048, 66523, True, ""),
        ("MPT 70B", 32, 2, 1024, 28242, True, ""),
        ("MPT 30B", 32, 14, 1344, 73860, True, ""),
        ("MPT 30B", 16, 10, 480, 36209, True, ""),
        ("MPT 30B", 8, 3, 504, 16022, True, ""),
        ("MPT 13B", 64, 2, 128, 307209, False, ""),
        ("MPT 13B", 32, 2, 64, 153960, False, ""),
        ("MPT 13B", 16, 2, 32, 76280, False, ""),
        ("MPT 13B", 8, 2, 16, 38336, False, FITTED),
        ("MPT 7B", 8, 6, 48, 85144, False, FITTED),
        ("MPT 3B", 64, 6, 1152, 1441663, False, ""),
        ("MPT 3B", 32, 6, 576, 736701, False, ""),
        ("MPT 3B", 16, 10, 480, 386285, False, ""),
        ("MPT 1B", 64, 20, 1280, 2841754, False, ""),
        ("MPT 1B", 32, 20, 640, 1444183, False, ""),
        ("MPT 1B", 16, 20, 320, 736596, False, ""),
        ("MPT 1B", 8, 14, 112, 363645, False, ""),
    ]
    a100 = [
        ("MPT 70B", 64, 8, 2048, 26274, True, ""),
        ("MPT 70B", 32, 2, 1024, 11962, True, ""),
        ("MPT 30B", 8, 3, 504, 7330, True, ""),
        ("MPT 13B", 8, 2, 48, 18097, False, ""),
        ("MPT 7B", 8, 6, 96, 37130, False, ""),
        ("MPT 3B", 8, 10, 160, 86491, False, ""),
        ("MPT 1B", 8, 14, 448, 164109, False, ""),
    ]
    for gpu, nic, rows in (("H100", 50e9, h100), ("A100", 25e9, a100)):
        note = "cards of 400 Gb/s are assumed" if gpu == "H100" else ""
        for name, gpus, microbatch, batch, tokens, recomputed, role in rows:
            division = Division(gpus, shard=3, microbatch=microbatch, recompute="full" if recomputed else "none")
            machine = cluster(gpu, gpus, nic)
            yield Published(name, shape(name), division, batch, machine, batch * 2048 / tokens, FOUNDRY, SHARDED, role, note * (gpus > 8))  # fmt: skip


def _titan() -> Iterator[Published]:
    for name, gpu, gpus, microbatch, recompute, tokens, source, note in (
        ("Llama 2 13B", "A100", 64, 2, "none", 2162, TITAN_A100, ""),
        ("Llama 2 70B", "A100", 64, 2, "full", 353, TITAN_A100, ""),
        ("Llama 3 70B", "A100", 64, 1, "full", 331, TITAN_A100, ""),
        ("Llama 3 8B", "H100", 8, 2, "none", 6667, TITAN_H100, "H100 of 500 W, slower memory; some operators are recomputed"),
        ("Llama 3 8B", "H100", 128, 2, "none", 6514, TITAN_H100, "H100 of 500 W, slower memory; some operators are recomputed"),
    ):  # fmt: skip
        model, division = shape(name), Division(gpus, shard=3, microbatch=microbatch, recompute=recompute)
        batch = gpus * microbatch
        machine = cluster(gpu, gpus, 25e9 if gpu == "A100" else 50e9)
        note = note or "cards of 200 Gb/s are assumed"
        yield Published(
            name, model, division, batch, machine, model.length * microbatch / tokens, source, SHARDED, "", note
        )


def _dgxc() -> Iterator[Published]:
    """The smallest and the largest number of GPUs of each model; those between take as long."""
    for name, gpus, tensor, pipeline, context, chunks, microbatch, batch, seconds, role in (
        ("Llama 3 8B", 8, 1, 1, 2, 1, 1, 128, 12.27, ""),
        ("Llama 3 8B", 128, 1, 1, 2, 1, 1, 2048, 12.33, ""),
        ("Llama 3 70B", 64, 4, 4, 2, 5, 1, 128, 14.66, FITTED),
        ("Llama 3 70B", 2048, 4, 4, 2, 5, 1, 4096, 14.66, ""),
        ("Llama 3 405B", 512, 8, 8, 2, 8, 1, 256, 19.78, ""),
        ("Llama 3 405B", 2048, 8, 8, 2, 8, 1, 1024, 19.87, ""),
        ("Nemotron-4 15B", 16, 2, 1, 1, 1, 2, 64, 2.66, ""),
        ("Nemotron-4 15B", 2048, 2, 1, 1, 1, 2, 8192, 2.78, ""),
        ("Nemotron-4 340B", 256, 8, 8, 1, 12, 1, 64, 4.36, ""),
        ("Nemotron-4 340B", 2048, 8, 8, 1, 12, 1, 512, 4.43, ""),
    ):
        division = Division(
            gpus // (tensor * pipeline * context), tensor, pipeline, context, chunks=chunks, microbatch=microbatch
        )
        yield Published(name, shape(name), division, batch, cluster("H100", gpus), seconds, DGXC, OVERLAPPED, role)


def _bloom() -> Iterator[Published]:
    division = Division(8, 4, 12, 1, 1, False, 1, 2, "full")
    machine = cluster("A100", 384, 6.25e9)
    yield Published("BLOOM 176B", shape("BLOOM 176B"), division, 2048, machine, 104.70, BIGSCIENCE, WAITING)


RUNS = (*_narayanan(), *_korthikanti(), *_megascale(), *_bloom(), *_llama(), *_foundry(), *_titan(), *_dgxc())
