"""faster(), least_tokens(...), fits_sharded(...), idle_share(...): a division that wins, and the rules of the chapter."""

from math import ceil
from typing import Any

from collectives.format import duration, kind
from collectives.machines import rails
from collectives.planner import Division, shape, step
from helpers.exercise import Case, Finding, Puzzle, valued

SHARDED = Division(2048, 8, shard=3, copies=256)  # the fastest of the four that the chapter has priced


def priced(way: Division):
    return step(shape("GPT 7.5B").with_(length=8192), way, 2048, rails(2048), program="FSDP")


def verdict(case: Case, arguments: tuple, result: Any, budget: bool) -> Finding | None:
    if not isinstance(result, Division):
        return Finding("values", words=f"faster must return a Division, not {kind(result)}.")
    try:
        s = priced(result)
    except ValueError as error:
        return Finding("values", words=f"{result}: {error}", thought="which product must be 16,384?")
    limit = priced(SHARDED).time
    if not s.fits:
        words = f"{result} takes {duration(s.time)}, but doesn't fit with 20% to spare."
        return Finding("values", words=words, thought="which states could be in shards?")
    if s.time < limit:
        return None
    longest = max((name for name in s.seconds if name != "compute"), key=s.seconds.get)
    words = f"{result} takes {duration(s.time)}; less than {duration(limit)} is wanted."
    thought = f"it loses {duration(s.seconds[longest])} to {longest}. What sends less, or can hide?"
    return Finding("values", words=words, thought=thought)


def praise(case: Case, arguments: tuple, result: Division) -> str:
    return f"{result} takes {duration(priced(result).time)}."


def least_tokens(flops, bandwidth, weight, gradient):
    return ceil(max(weight / 2, (weight + gradient) / 4) * flops / bandwidth)


def fits_sharded(parameters, gpus, activations, memory, spare=1.2, whole=(16, 4, 2, 0), states=16):
    held = (parameters * (each + (states - each) / gpus) for each in whole)
    return next((stage for stage, each in enumerate(held) if spare * (each + activations) <= memory), None)


def idle_share(stages, chunks, sequences):
    idle = (stages - 1) / chunks
    return idle / (sequences + idle)


TASKS = (
    Puzzle("faster", (Case(1, "16,384 GPUs"),), lambda d: (), verdict, praise),
    valued(
        "least_tokens",
        {
            "all in 16 bits, F/B an integer": (400e12, 100e9, 2, 2),
            "all in 16 bits": (425e12, 148e9, 2, 2),
            "weights in 8 bits": (425e12, 148e9, 1, 2),
            "gradients in 32 bits": (425e12, 148e9, 2, 4),
            "gradients in 8 bits": (425e12, 148e9, 2, 1),
            "a slow network, gradients in 32 bits": (425e12, 25e9, 2, 4),
        },
        least_tokens,
        suspects={
            lambda f, b, w, g: int(max(w / 2, (w + g) / 4) * f / b): (
                "from how many tokens does it hide *entirely*? Round up."
            ),
            lambda f, b, w, g: max(w / 2, (w + g) / 4) * f / b: "tokens come whole: round up.",
            lambda f, b, w, g: ceil(
                w / 2 * f / b
            ): "that's forward. What does backward send, next to twice the compute?",
            lambda f, b, w, g: ceil((w + g) / 4 * f / b): (
                "that's backward. If gradients are small, forward is the harder one to hide."
            ),
            lambda f, b, w, g: ceil((2 * w + g) / 6 * f / b): (
                "that's the whole step at once. But forward's compute can't hide what backward sends."
            ),
            lambda f, b, w, g: ceil(f / b): "F/B is for 2 bytes each. How long does gathering `weight` bytes take?",
            lambda f, b, w, g: ceil(max(w, (w + g) / 2) * f / b): (
                "a token costs two FLOP per parameter forward, a multiplication and an addition."
            ),
            lambda f, b, w, g: ceil(max(w / 2, g / 4) * f / b): "backward gathers the weights again, too.",
        },
        thought="for each pass, set P x bytes / bandwidth equal to its compute, 2PT or 4PT / flops. Which T is larger?",
        praise="At 25 GB/s, with gradients in 32 bits, it takes {} tokens per GPU.",
    ),
    valued(
        "fits_sharded",
        {
            "7.5B on 8 GPUs": (7.5e9, 8, 10e9, 80e9),
            "7.5B on 8 GPUs, with more activations": (7.5e9, 8, 40e9, 80e9),
            "1B on 8 GPUs": (1e9, 8, 20e9, 80e9),
            "2B on 8 GPUs, just without ZeRO": (2e9, 8, 33e9, 80e9),
            "70B on 512 GPUs, without tensor ranks": (70e9, 512, 194e9, 80e9),
            "13B on 64 GPUs": (13e9, 64, 25e9, 80e9),
            "405B on 8 GPUs": (405e9, 8, 10e9, 80e9),
        },
        fits_sharded,
        suspects={
            lambda *given: fits_sharded(
                *given, spare=1
            ): "20% of what you need stay free: 1.2 times states and activations must fit.",
            lambda *given: fits_sharded(
                *given, whole=(16, 12, 2, 0)
            ): "ZeRO 1 divides the optimizer's 12 bytes. 4 stay whole.",
            lambda *given: fits_sharded(*given, whole=(18, 4, 2, 0), states=18): "a parameter's states take 16 bytes here: 12, 2 and 2.",
            lambda *given: 3: "take the smallest stage that fits, because each further one sends more or hides less.",
            lambda *given: fits_sharded(*given, whole=(0, 0, 0, 0)): "which bytes does each stage leave on every rank?",
        },
        thought="for each stage, how many of the 16 bytes are on every rank, and how many are divided by `gpus`?",
    ),
    valued(
        "idle_share",
        {
            "two stages, two sequences": (2, 1, 2),
            "four stages, eight sequences": (4, 1, 8),
            "eight stages in 16 chunks": (8, 16, 8),
            "one stage": (1, 1, 8),
        },
        idle_share,
        suspects={
            lambda p, v, m: (
                (p - 1) / v / m
            ): "that's idle time per *compute*. A share of the step has both below the line.",
            lambda p, v, m: (p - 1) / (m + p - 1): "chunks shorten the wait: the pipeline fills v times as fast.",
            lambda p, v, m: m / (m + (p - 1) / v): "that's the share it works.",
        },
        thought="it computes m microbatches. For how many microbatches' time does it idle?",
    ),
)
