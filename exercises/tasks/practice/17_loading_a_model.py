"""place_of, shard_range, newest_complete and save_every: finding a tensor, dividing it, and saving it whole."""

import json

from helpers.exercise import valued


def file_of(sizes: dict[str, int]) -> bytes:
    """The beginning of a safetensors file of float32 vectors."""
    header, at = {"__metadata__": {"made": "here"}}, 0
    for name, size in sizes.items():
        header[name] = {"dtype": "F32", "shape": [size], "data_offsets": [at, at := at + 4 * size]}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(16)


def place_of(data, name, behind=lambda size: 8 + size):
    size = int.from_bytes(data[:8], "little")
    first, last = json.loads(data[8 : 8 + size])[name]["data_offsets"]
    return behind(size) + first, behind(size) + last


def shard_range(length, rank, n):
    return rank * (length // n) + min(rank, length % n), (rank + 1) * (length // n) + min(rank + 1, length % n)


def newest_complete(names, key=lambda name: int(name[4:]), stops=lambda name: name[4:].isdigit()):
    return max((name for name in names if name.startswith("step") and stops(name)), key=key, default=None)


def save_every(stop, between_failures, seconds=lambda c, m: (2 * c * m) ** 0.5):
    t = seconds(stop, between_failures)
    return t, stop / t + t / 2 / between_failures


TASKS = (
    valued(
        "place_of",
        {
            "the first tensor": (file_of({"a": 4, "b": 8}), "a"),
            "the second tensor": (file_of({"a": 4, "b": 8}), "b"),
            "a longer header": (file_of({f"layer{k}.weight": 16 for k in range(9)}), "layer7.weight"),
        },
        place_of,
        suspects={
            lambda data, name: place_of(data, name, lambda size: 0): "offsets count from behind the header. How long is it?",
            lambda data, name: place_of(data, name, lambda size: size): "the 8 bytes that hold the header's length count, too.",
            lambda data, name: place_of(data, name, lambda size: 8): "behind the 8 bytes comes the header, and the numbers come behind that.",
        },
        thought="8 bytes with the header's length (little-endian), the header in JSON, then the numbers. data_offsets count from there.",
    ),
    valued(
        "shard_range",
        {
            "8 over 4": (8, 1, 4),
            "9 over 4, the last": (9, 3, 4),
            "9 over 4, the first": (9, 0, 4),
            "11 over 4, the third": (11, 2, 4),
            "2 over 4, the last": (2, 3, 4),
            "all on one": (7, 0, 1),
        },
        shard_range,
        suspects={
            lambda length, rank, n: (rank * (length // n), (rank + 1) * (length // n)): "the remainder belongs to no rank here.",
            lambda length, rank, n: (rank * (length // n), length if rank == n - 1 else (rank + 1) * (length // n)): (
                "the last rank gets the whole remainder. Parts may differ by one at most."
            ),
            lambda length, rank, n: (min(length, rank * -(-length // n)), min(length, (rank + 1) * -(-length // n))): (
                "that's how chunk() divides: the last ranks may get nothing. Parts may differ by one at most."
            ),
        },
        thought="divmod says how many each gets, and how many are left over for the first ranks. Where does rank r begin?",
    ),
    valued(
        "newest_complete",
        {
            "two steps": (["step2", "step4"],),
            "a crash during the last": (["step2", "step4.partial"],),
            "from 9 to 10": (["step9", "step10", "step8"],),
            "something else in the folder": (["logs", "step100", "steps.txt", "step20"],),
            "nothing yet": (["step2.partial"],),
        },
        newest_complete,
        suspects={
            lambda names: newest_complete(names, key=lambda name: name): "as text, 'step9' comes after 'step10'. Compare numbers.",
            lambda names: newest_complete(names, lambda name: int("".join(filter(str.isdigit, name)) or 0), lambda name: True): (
                "a name that ends in .partial isn't complete: a crash may have left it."
            ),
            lambda names: max(names, default=None): "not every name is a complete step's, and as text, 'step9' comes after 'step10'.",
        },
        thought="which names are 'step' and digits only, and which of them has the largest number?",
    ),
    valued(
        "save_every",
        {
            "Llama 3, all nodes write": (3.2, 10_000.0),
            "Llama 3, one node writes": (160.0, 10_000.0),
            "a small job": (20.0, 500_000.0),
        },
        save_every,
        suspects={
            lambda c, m: save_every(c, m, lambda c, m: (c * m) ** 0.5): "a failure costs T/2 on average: half an interval is lost. Set the derivative of C/T + T/2M to 0.",
            lambda c, m: ((2 * c * m) ** 0.5, c / (2 * c * m) ** 0.5): "that's the share for saving. Work that is done again is lost, too.",
            lambda c, m: (2 * c * m) ** 0.5: "return both: T, and the share that is lost.",
            lambda c, m: save_every(c, m, lambda c, m: m): "if you save once per failure, how much work is lost each time?",
        },
        thought="T = sqrt(2 C M). The share is C/T for the saves and T/2M for the work that is done again.",
    ),
)  # fmt: skip
