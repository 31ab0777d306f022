"""What a rank tells through memory: it outlives the rank, and of too much the oldest is lost and nobody accused."""

import os
import signal

import pytest
import torch

from collectives.jobs.hearer import Hearer
from collectives.jobs.judge import Judge
from collectives.jobs.lines import Reader, decoded
from collectives.jobs.record import load
from collectives.jobs.ring import RingReader, RingWriter
from collectives.jobs.teller import Teller
from collectives.jobs.writer import Writer
from collectives.judge import wording
from collectives.judge.verdict import Verdict
from collectives.rank.protocol import Called, Completed, Issued, Returned, Skipped, Waiting
from collectives.record.event import Event, Summary
from tests.test_cluster import event

SEGMENT_BYTES = 1 << 12


class Told:
    """A rank's ring, and who writes and hears it."""

    def __init__(self, rank):
        self.rank, ring = rank, RingWriter(SEGMENT_BYTES)
        ring._hold = 0.0  # nobody reads meanwhile: to wait would be for nothing
        self.teller, self.reader, self.hearer = (
            Teller(ring, rank, False),
            RingReader(ring.descriptor),
            Hearer(rank, 0.0),
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
    read = [m for line in (line for line, _ in heard) for m in again.read(*decoded(line)[1:])]
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
    assert judge.is_due and "rank 1 waits in all_reduce #1201; rank 0 returned after 1200 calls" in wording.words(
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
