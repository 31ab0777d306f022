"""The software of a run: its attention, the messages it overlaps with computation, its fusion."""

from typing import NamedTuple


class Overlap(NamedTuple):
    """Shares, 0 to 1, of each kind's message seconds that can hide behind computing."""

    tensor: float = 0.0
    data: float = 1.0
    pipeline: float = 1.0
    context: float = 1.0
    experts: float = 0.0


class Program(NamedTuple):
    """A program of a year.

    flash: attention in one kernel that never writes the scores, and computes the causal half.
    passes: times that the memory carries what a layer keeps for backward, in a forward; in a backward twice as often.
        A program that fuses more has fewer.
    """

    flash: bool
    overlap: Overlap
    passes: float


# `passes` are fitted, see validation.py.  In Megatron-LM since 2024, and in MegaScale and NeMo, which build on it, the
# tensor ranks' products are cut, and their pieces sent meanwhile.  FSDP gathers the next layer meanwhile; for DeepSpeed
# in 2021 that is assumed.  DualPipe hides the messages to experts, too, as interleaved 1F1B with one more forward does.
PROGRAMS = {
    "Megatron-LM 2021": Program(False, Overlap(0, 0, 0, 0), 2.0),  # and 2022: every message is waited for
    "Megatron-LM 2023": Program(False, Overlap(0, 1, 1, 1), 2.0),
    "Megatron-LM 2024": Program(True, Overlap(0.75, 1, 1, 1), 2.75),
    "DeepSpeed 2021": Program(False, Overlap(0, 1, 1, 1), 2.0),
    "FSDP": Program(True, Overlap(0, 1, 1, 1), 5.25),
    "DualPipe 2024": Program(True, Overlap(0.75, 1, 1, 1, 1), 2.75),
}
LATEST = "Megatron-LM 2024"


def program_named(name: str | Program) -> Program:
    """A program by its name.  Raises ValueError for one that is not in PROGRAMS."""
    if isinstance(name, Program):
        return name
    if name not in PROGRAMS:
        raise ValueError(f"programs are {', '.join(PROGRAMS)}, not {name!r}. Make one: Program(...).")
    return PROGRAMS[name]
