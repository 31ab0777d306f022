"""What a rank tells through memory: it outlives the rank, and of too much the oldest is lost and nobody accused."""

import argparse
import mmap
import os
import random
import signal

import pytest
import torch

from collectives.judge import wording
from collectives.judge.verdict import Verdict
from collectives.log.event import Event, Summary
from collectives.log.messages import Called, Completed, Issued, Returned, Skipped, Waiting
from collectives.watch import ring as rings
from collectives.watch.collector import Collector
from collectives.watch.job_judge import Judge
from collectives.watch.lines import Reader, decode_line
from collectives.watch.message_decoder import MessageDecoder
from collectives.watch.message_encoder import CALL, LINE, MessageEncoder
from collectives.watch.pipe import Pipe
from collectives.watch.record import load
from collectives.watch.ring import HEADER_BYTES, RingReader, RingWriter
from collectives.watch.sockets import Listener, connect
from collectives.watch.writer import Writer
from tests.test_cluster import event

SEGMENT_BYTES = 1 << 12


class Told:
    """A rank's ring, and who writes and hears it."""

    def __init__(self, rank):
        self.rank, ring = rank, RingWriter(SEGMENT_BYTES)
        ring._hold = 0.0  # nobody reads meanwhile: to wait would be for nothing
        self.ring, self.memory = ring, mmap.mmap(ring.descriptor, 0)
        self.teller, self.reader, self.hearer = (
            MessageEncoder(ring, rank, False),
            RingReader(os.dup(ring.descriptor)),
            MessageDecoder(rank, 0.0),
        )

    def call(self, index, **rest):
        self.teller.tell(Called(event(self.rank, index, start=float(index), **rest)))
        self.teller.tell(Waiting(index, index + 0.25, False, "main"))

    def done(self, index):
        self.teller.tell(Completed(index, None, index + 0.5, True, None))

    def heard(self):
        return [both for piece, lost in self.reader.read() for both in self.hearer.hear(piece, lost)]


def test_what_a_killed_rank_wrote_is_read_after_it():
    told = Told(0)
    if not (child := os.fork()):
        told.call(0)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert [type(message) for _, message in told.heard() if message] == [Called, Waiting]


def test_of_too_much_the_oldest_is_lost_and_the_last_calls_are_whole():
    told = Told(0)
    for k in range(1000):
        told.call(k, shape=(k % 7,))  # signatures are told anew in each segment
        told.done(k)
    told.call(1000)
    messages = [message for _, message in told.heard() if message]
    (skipped,) = [m for m in messages if type(m) is Skipped]
    made = [m.event for m in messages if type(m) is Called]
    assert messages[0] is skipped and 0 < skipped.calls < 1000
    assert [e.index for e in made] == list(range(skipped.calls, 1001))  # no other call is missing
    assert [e.shape for e in made] == [(k % 7,) for k in range(skipped.calls, 1000)] + [(2,)]
    assert list(skipped.made.values()) == [skipped.calls]
    assert type(messages[-1]) is Waiting and messages[-1].index == 1000


def test_a_reader_that_keeps_up_loses_nothing():
    told, made = Told(0), []
    for k in range(1000):
        told.call(k, shape=(k % 7,))
        told.done(k)
        if k % 20 == 0 or k == 999:
            made += [m.event.index for _, m in told.heard() if type(m) is Called]
    assert made == list(range(1000))


def arriving(memory, write, order):
    """Have a process write into memory, and let another see what it stored word by word, in any order, as ARM may."""
    before = bytes(memory)
    write()
    after = bytes(memory)
    changed = [at for at in range(0, len(after), 8) if before[at : at + 8] != after[at : at + 8]]
    for at in changed:
        memory[at : at + 8] = before[at : at + 8]
    order.shuffle(changed)
    for at in changed:
        memory[at : at + 8] = after[at : at + 8]
        yield


@pytest.mark.parametrize("seed", range(4))
def test_records_that_arrive_in_any_order_are_read_once_they_are_whole(seed):
    ring, order, written, read = RingWriter(SEGMENT_BYTES), random.Random(seed), b"", b""
    memory, reader = mmap.mmap(ring.descriptor, 0), RingReader(ring.descriptor)
    while len(written) < 3 * rings.SEGMENTS * SEGMENT_BYTES:  # over records of earlier turns, too
        records = [order.randbytes(order.randrange(1, 80)) for _ in range(order.randrange(1, 5))]

        def write():
            for record in records:
                if ring.left < len(record):
                    ring.turn()
                ring.put(record)

        for _ in arriving(memory, write, order):
            for piece, lost in reader.read():
                assert not lost
                read += piece
                assert (written + b"".join(records)).startswith(read)
        written += b"".join(records)
        assert read == written


def test_a_reader_that_is_overtaken_gets_no_wrong_record():
    """It reads while the rest of a segment that it has begun is overwritten."""
    order, told = random.Random(0), Told(0)
    told.call(0)
    assert told.heard()

    def write():
        for k in range(1, 1000):
            told.call(k, shape=(k,))
            told.done(k)

    heard = [both for _ in arriving(told.memory, write, order) for both in told.heard()]
    messages = [message for _, message in heard if message]
    first = next(m.calls for m in messages if type(m) is Skipped)
    assert [m.event.shape[0] for m in messages if type(m) is Called] == list(range(first, 1000))
    assert not told.hearer.is_deaf


def damage(told):
    """What a wild pointer of the program does: the last record, a line, gets other bytes."""
    told.call(1, shape=(12345,))
    memory, at = told.memory, bytes(told.memory).rindex(b"12345")
    memory[at : at + 5] = b"54321"


def misspell(told):
    told.ring.put(b"\xff" * 20)


def cut_short(told):
    told.ring.put(bytes([CALL]) + bytes(5))


def write_no_line(told):
    told.ring.put(bytes([LINE, 3, 0, 0, 0]) + b"[0]")


@pytest.mark.parametrize("spoil", [damage, misspell, cut_short, write_no_line])
def test_damaged_records_are_lost_which_is_said_and_the_collector_goes_on(spoil, tmp_path, capsys):
    name = f"collectives-test-{os.getpid()}"
    options = argparse.Namespace(script=["train.py"], last=2000, patience=60, alarm=None)
    listener = Listener(name, 1)
    collector = Collector(listener, None, {"token": "", "began": 0.0}, 1, 1, str(tmp_path / "r"), options)
    told, rank = Told(0), Pipe(connect(name))
    about = {"rank": 0, "host": "h", "pid": os.getpid(), "began": 0.0, "processes": ""}
    rank.send(about, descriptors=(told.ring.descriptor,))
    told.call(0)
    while not collector._ranks or not collector._writer._account.calls[0]:
        collector.look()
    spoil(told)
    said = ""
    while "some records of rank 0 are damaged and lost, so no verdict follows. Training goes on.\n" not in said:
        collector.look()
        said += capsys.readouterr().err
    for k in range(2, 100):  # some segments more
        told.call(k, shape=(k,))
        told.done(k)
        if k % 10 == 0:
            collector.look()
    rank.send({"end": True})
    rank.sock.close()
    collector.serve()
    said += capsys.readouterr().err
    assert said.count("are damaged and lost") == 1 and "faster" not in said
    record = load(tmp_path / "r")
    (events,) = record.events
    indices = [e.index for e in events]
    assert record.verdict == "" and 2 < indices[0] < 90 and indices == list(range(indices[0], 100))
    assert all(e.shape == (e.index,) for e in events)
    assert f"100 calls ({indices[0] - 1} of them were lost) in " in said


@pytest.mark.parametrize("nbytes", [1, HEADER_BYTES, HEADER_BYTES + 400])
def test_a_file_that_is_no_ring_is_refused(nbytes):
    with pytest.raises(ValueError, match="this memory is not a ring"):
        RingReader(rings.anonymous(nbytes))


def test_what_a_stream_has_is_told_in_numbers_once_it_is_known_what_is_left():
    told, left = Told(0), Summary((2,), torch.float32, 8, 0, (), ())
    for k in range(40):
        told.teller.tell(Called(event(0, k, start=float(k))))
        told.teller.tell(Issued(k, left if k else None, k + 0.25))
        told.teller.tell(Completed(k, None, k + 0.5, True, None))
    heard = told.heard()
    issued = [message for _, message in heard if type(message) is Issued]
    assert issued == [Issued(k, left if k else None, k + 0.25) for k in range(40)]
    assert sum(b'"leaves"' in line for line, _ in heard) == 2  # of 40 calls
    again = Reader(0)
    read = [m for line in (line for line, _ in heard) for m in again.read(*decode_line(line)[1:])]
    assert [m for m in read if type(m) is Issued] == issued  # as a record is read


def judged(judge, told, writer=None):
    for line, message in told.heard():
        if writer:
            writer.add(told.rank, line, message)
        if message:
            judge.take(told.rank, message)


def test_what_is_heard_at_once_is_what_is_heard_bit_by_bit(tmp_path):
    messages = []
    for k in range(12):
        waiting = [Waiting(k, k + 0.25, k == 3, 7 if k == 5 else "main")] if k != 4 else []
        done = [Completed(k, None, k + 0.5, k != 6, None)] if k < 11 else []
        messages += [Called(event(0, k, start=float(k))), *waiting, *done]
    messages[-5:] = messages[-5], messages[-2], *messages[-4:-2], messages[-1]  # two calls under way together
    found = []
    for at_once in (True, False):
        told, judge = Told(0), Judge(2, patience=60)
        writer = Writer(tmp_path / str(at_once), 2, ["train.py"], 100, lambda: (), 0.0)
        for message in messages:
            told.teller.tell(message)
            if not at_once:
                judged(judge, told, writer)
        judged(judge, told, writer)
        writer.close()
        (events, _), (stands, _) = judge._monitor.events, judge._monitor.standing
        made = [e.__reduce__() for e in events]
        found.append([(writer.folder / "00000.jsonl").read_bytes(), made, stands.event.index, writer._account.so_far()])
    assert found[0] == found[1]
    assert len(found[0][1]) == 12 and found[0][2] == 11


@pytest.mark.parametrize("behind", [0, 1])
def test_judging_goes_on_after_a_gap_and_accuses_nobody(behind):
    """Rank `behind` is read late, and so lacks calls that the other's have been paired with, or will be."""
    ranks, judge = [Told(0), Told(1)], Judge(2, patience=60)
    for k in range(1000):
        for told in ranks:
            told.call(k)
            told.done(k)
        if k % 20 == 0 and k:
            judged(judge, ranks[1 - behind])
        assert not judge.is_due
    judged(judge, ranks[behind])
    judged(judge, ranks[1 - behind])
    judge.nothing_more()
    assert not judge.is_due
    assert judge._monitor.standstill(0.0) is None  # no call lacks anybody
    ranks[0].call(1000, dtype=torch.float64)
    ranks[1].call(1000)
    for told in ranks:
        judged(judge, told)
    assert judge.is_due and "ranks disagree on the dtype of all_reduce in call #1001" in wording.words(judge.conclude())


def test_both_behind_and_one_hangs():
    ranks, judge = [Told(0), Told(1)], Judge(2, patience=60)
    for k in range(1200):
        ranks[0].call(k)
        ranks[0].done(k)
    for k in range(1000):
        ranks[1].call(k)
        ranks[1].done(k)
    for told in ranks:
        judged(judge, told)
    judge.nothing_more()
    assert not judge.is_due
    for k in range(1000, 1200):  # those that rank 0 made unseen, and those that it made seen
        ranks[1].call(k)
        ranks[1].done(k)
    ranks[1].call(1200)
    judged(judge, ranks[1])
    assert not judge.is_due
    ranks[0].teller.tell(Returned(b"", (None, None), None, []))
    judged(judge, ranks[0])
    assert judge.is_due and "rank 1 is waiting in all_reduce #1201; rank 0 returned after 1200 calls" in wording.words(
        judge.conclude()
    )


def test_a_record_with_a_gap_pairs_what_is_left(tmp_path):
    ranks, judge = [Told(0), Told(1)], Judge(2, patience=60)
    writer = Writer(str(tmp_path / "r"), 2, ["train.py"], 2000, lambda: (), 0.0)
    for k in range(1000):
        for told in ranks:
            told.call(k, tag=k)
            told.done(k)
        if k % 20 == 0:
            judged(judge, ranks[1], writer)
    for told in ranks:
        judged(judge, told, writer)
    writer.close()
    record = load(tmp_path / "r")
    assert record.calls and all(call.is_complete for call in record.calls)
    assert all(len({e.tag for e in call}) == 1 for call in record.calls)
    assert record.dropped == 2000 - 2 * len(record.calls)


def test_a_field_of_an_event_that_is_new_needs_nothing():
    """All of an event's fields are told, whichever there are."""
    told = Told(0)
    e = Event(0, 0, "all_to_all_single", (0, 1), dtype=torch.int8, shape=(2,), splits=((1, 1), (2, 0)), tag=3)
    e.within, e.non_dense, e.strides, e.misuse, e.group_name = "f", ("in",), (2,), "aliased", "g"
    told.teller.tell(Called(e))
    (message,) = [m for _, m in told.heard() if m]
    assert message.event.__reduce__() == e.__reduce__()  # all of its fields


def test_a_disk_that_is_full_is_said_in_a_line(tmp_path, capsys):
    writer = Writer(str(tmp_path / "r"), 2, ["train.py"], 2000, lambda: (), 0.0)
    writer._file.close()
    writer._file = open("/dev/full", "wb")
    told = Told(0)
    told.call(0)
    for line, message in told.heard():
        writer.add(0, line, message)
    for _ in range(3):
        writer.flush()
    writer.verdict("it stands still")
    writer.close()
    with pytest.raises(OSError):
        writer._file.close()
    said = f"collectives.jobs: No space left on device: the record in {tmp_path / 'r'} ends here. Training goes on.\n"
    assert capsys.readouterr().err == said
    assert writer.summary(1.0) == "1 calls in 1.0 s"
    (tmp_path / "file").write_text("")
    nowhere = Writer(str(tmp_path / "file" / "r"), 2, ["train.py"], 2000, lambda: (), 0.0)
    nowhere.verdict("it stands still", Verdict(world_size=2))
    assert capsys.readouterr().err.count("Not a directory: the record in") == 1
