"""Forged messages: whatever a rank sends, it is a value, or it is Malformed; the judge gets to an end over it."""

import random
import socket
import struct
import threading
from contextlib import suppress

import pytest
import torch

from collectives.outcome.errors import RunError
from grader import switch
from grader.described_calls import Ungradable
from grader.inside.protocol import DTYPES, FrameReader, Malformed, decode, encode, frame
from helpers.exercise.cases import Case
from helpers.exercise.feedback import explain
from helpers.exercise.judgment import judge
from helpers.exercise.task import Attempt, Task
from helpers.exercise.tasks import TASKS
from tests.sampling import is_taken, when

SOME = [
    pytest.param(name, marks=when(k % 6 == 0, each_push=is_taken(k, 6)))
    for k, name in enumerate(name for name, task in TASKS.items() if isinstance(task, Task))
]
OVERFLOWS = [  # shapes of no number, whose strides or storage torch cannot hold
    [0, *[1 << 24] * 7],
    [1 << 24, 0, 1 << 24, 1 << 24],
    [0, (1 << 24) + 1],
]


class Forger:
    """Odd values for a message, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)

    def any(self, depth: int = 0):
        kinds = [self.number, self.words, self.tensor, lambda: self._draw.choice([None, True, False])]
        if depth < 6:
            kinds += [lambda: self.listed(depth), lambda: self.tagged(depth), lambda: self.table(depth)] * 2
        return self._draw.choice(kinds)()

    def number(self):
        return self._draw.choice(
            [0, 1, -1, 2, 3, 7, 1 << 24, 1 << 63, 10**30, -(1 << 64), 0.5, 1e308, float("inf"), float("nan")]
        )

    def words(self):
        return self._draw.choice(["", "tensor", "float32", "SUM", "\0", "\ud800", "F٣", "x" * 9000, "<b>", "\x1b[2J"])

    def shape(self):
        return [
            self._draw.choice([0, 1, 2, 3, 1 << 24, 1 << 62, -1, True, 1.0, "3"])
            for _ in range(self._draw.randrange(10))
        ]

    def tensor(self):
        return {
            "tensor": [
                self._draw.choice([*DTYPES, "quint8", 3]),
                self._draw.choice([self.shape(), OVERFLOWS[0], [2], [3], 3, None]),
            ]
        }

    def listed(self, depth):
        return [self.any(depth + 1) for _ in range(self._draw.randrange(4))]

    def tagged(self, depth):
        return {self._draw.choice(["list", "tuple", "dict", "tensor", "columns", "other", "?"]): self.any(depth + 1)}

    def table(self, depth):
        names = [
            "group",
            "name",
            "src",
            "dst",
            "tag",
            "reduce_op",
            "splits",
            "index",
            "in",
            "out",
            "line",
            "ticket",
            "busy",
            "limit",
        ]
        return {self._draw.choice(names): self.any(depth + 1) for _ in range(self._draw.randrange(3))}

    def body(self):
        return bytes(self._draw.choice([0, 4, 8, 12, 16, 24]))

    def changed(self, value):
        """The value with an odd one somewhere in it."""
        if self._draw.random() < 0.3 or not isinstance(value, (list, dict)) or not value:
            return self.any(3)
        if isinstance(value, list):
            k = self._draw.randrange(len(value))
            return [*value[:k], self.changed(value[k]), *value[k + 1 :]]
        key = self._draw.choice(list(value))
        return value | {key: self.changed(value[key])}

    def result(self, task, arguments):
        """What a right answer sends at its end, mostly with something odd in it."""
        value, body = encode((task.reference([arguments])[0], arguments))
        for _ in range(self._draw.randrange(3)):
            value = self.changed(value)
        return {"returned": value}, self._draw.choice([body, body, body, b"", self.body()])

    def message(self):
        """A message of a kind that the scorer knows, with one thing or more that is odd in it."""
        value, body = encode(torch.ones(3))
        call = {
            "call": "all_reduce",
            "index": 0,
            "in": value,
            "out": [["float32", [3]]],
            "group": [0],
            "name": "0",
            "reduce_op": "SUM",
            "line": None,
        }
        call["call"] = self._draw.choice(
            [
                "all_reduce",
                "send",
                "recv",
                "all_to_all_single",
                "reduce_scatter_single",
                "barrier",
                "scatter",
                "eval",
                "_single",
            ]
        )
        kinds = [
            (call, body),
            ({self._draw.choice(["wait", "test"]): 0, "ticket": 1}, b""),
            ({"failed": "E", "message": "m", "frames": []}, b""),
            ({"read": 0, "at": 0, "most": 9, "ticket": 1}, b""),
            ({"printed": "words"}, b""),
            (self.table(0), self.body()),
        ]  # fmt: skip
        header, body = self._draw.choice(kinds)
        for _ in range(self._draw.randrange(3)):
            header = dict(header) | {self._draw.choice(list(header) or ["call"]): self.any()} | self.table(1)
        return header, self._draw.choice([body, body, self.body()])


@pytest.mark.slow
def test_whatever_is_decoded_is_a_value_or_malformed():
    for seed in range(100_000):
        forger = Forger(seed)
        try:
            decode(forger.any(), forger.body())
        except Malformed:
            pass


@pytest.mark.parametrize("shape", OVERFLOWS)
def test_a_shape_that_torch_cannot_hold_is_malformed(shape):
    with pytest.raises(Malformed):
        decode({"tensor": ["float32", shape]}, b"")


def test_a_number_is_of_64_bits_wherever_it_stands():
    for value in (1 << 65, {"list": [1 << 65]}):
        with pytest.raises(Malformed, match="64 bits"):
            decode(value, b"")


def test_whatever_bytes_arrive_they_are_messages_or_malformed():
    draw = random.Random(1)
    for _ in range(5_000):
        head = draw.choice(
            [b"{}", b'{"a": 1}', b"[1]", b"nan", b"\xff" * 3, b"1" * 5000, b'{"a":' * 200, b"[" * 20_000]
        )
        sizes = draw.choice([(len(head), 0), (len(head), 3), (1 << 31, 0), (draw.randrange(9), draw.randrange(9))])
        try:
            FrameReader().feed(struct.pack("!II", *sizes) + head + bytes(3))
        except Malformed:
            pass


def attempt(task: Task, case: Case, inputs: list[tuple], messages: list[tuple]) -> Attempt:
    """What the scorer makes of one rank that sends these messages, headers and bodies, once it has its case."""

    def send() -> None:
        for burst in ([({"ready": True}, b"")], messages):
            theirs.recv(1 << 20)
            with suppress(OSError):  # the scorer has heard enough
                theirs.sendall(b"".join(frame(*message) for message in burst))
        theirs.shutdown(socket.SHUT_WR)

    ours, theirs = socket.socketpair()
    with ours, theirs:
        sending = threading.Thread(target=send)
        sending.start()
        try:
            return switch.Switch([ours], {}, task.name, lambda: [None]).attempt([], [case], [inputs])[0]
        finally:
            ours.close()
            sending.join()


def forged(task: Task, case: Case, seed: int) -> None:
    """Send the scorer odd messages of one rank, and have what it makes of them judged."""
    forger, inputs = Forger(seed), task.arguments(case)
    messages = [forger.message() for _ in range(seed % 3)] + [forger.result(task, inputs[0])]
    try:
        done = attempt(task, case, inputs, messages)
    except (RunError, Ungradable) as error:
        assert str(error)
        return
    if verdict := judge(task, case, inputs, done):
        assert explain(task, case, inputs, verdict)


@pytest.mark.parametrize("name", SOME)
def test_whatever_a_rank_sends_there_is_a_verdict(name):
    case = next(case for case in TASKS[name].cases if case.world_size == 1)
    for seed in range(100):
        forged(TASKS[name], case, seed)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["distributed_mean", "average_in_buckets", "load_columns"])
def test_whatever_a_rank_sends_ten_thousand_times_there_is_a_verdict(name):
    case = next(case for case in TASKS[name].cases if case.world_size == 1)
    for seed in range(10_000):
        forged(TASKS[name], case, seed)


@pytest.mark.parametrize("name", ["tree_broadcast", "ring_all_reduce", "average_in_buckets", "sharded_step"])
def test_a_result_with_another_number_of_arguments_is_refused(name):
    task = TASKS[name]
    case = next(case for case in task.cases if case.world_size == 1)
    with pytest.raises(Ungradable, match="other arguments"):
        attempt(task, case, task.arguments(case), [({"returned": {"tuple": [None, {"tuple": []}]}}, b"")])


ODD = [
    None,
    (),
    [],
    (None,),
    ((),),
    "x",
    1.5,
    torch.zeros(0),
    [torch.zeros(2, 2)] * 3,
    torch.zeros(3, dtype=torch.complex64),
]


@pytest.mark.parametrize("name", SOME)
def test_whatever_is_returned_and_left_in_the_arguments_gets_a_verdict_in_words(name):
    task = TASKS[name]
    case = task.cases[0]
    inputs = task.arguments(case)
    right = task.after(inputs) if task.after else inputs
    for odd in ODD:
        for results, arguments in (
            ([odd] * len(inputs), right),
            (task.reference(inputs), [(odd, *own[1:]) for own in right]),
        ):
            attempt = Attempt(results, list(arguments), [[] for _ in inputs], [[] for _ in inputs])
            if verdict := judge(task, case, inputs, attempt):
                assert explain(task, case, inputs, verdict)
