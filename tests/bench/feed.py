"""How many calls a second the collector takes in, by its processor time:

    python -m tests.bench.feed [RANKS [CALLS [TOGETHER]]]

Ranks write all_reduces into their rings, each call told, waited for and complete, or so many made before the first of
them is waited for; then they are read, written to a record, and judged, as in a job.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import time

import torch

from collectives.log.event import Event, Line, Summary
from collectives.log.messages import Called, Completed, Waiting
from collectives.watch.collector import GARBAGE
from collectives.watch.job_judge import Judge
from collectives.watch.message_decoder import MessageDecoder
from collectives.watch.message_encoder import MessageEncoder
from collectives.watch.ring import RingReader, RingWriter
from collectives.watch.writer import Writer

STEP = 50  # calls of each rank between two looks


def main() -> None:
    ranks, calls, together = map(int, [*sys.argv[1:], *["4", "20000", "1"][len(sys.argv) - 1 :]])
    group, outline = tuple(range(ranks)), Summary((16,), torch.float32, 64, 0, (), ())
    line = Line(__file__, 1, "main", "dist.all_reduce(x)")
    gc.set_threshold(*GARBAGE)
    rings = [RingWriter(1 << 19) for _ in group]
    tellers = [MessageEncoder(ring, rank, False) for rank, ring in enumerate(rings)]
    readers = [(RingReader(ring.descriptor), MessageDecoder(rank, 0.0)) for rank, ring in enumerate(rings)]
    told = heard = 0.0
    with tempfile.TemporaryDirectory() as folder:
        judge, writer = Judge(ranks, 60), Writer(folder, ranks, ["train.py"], 2000, lambda: (), 0.0)
        for first in range(0, calls // ranks, STEP):
            begun = time.process_time()
            for rank, teller in enumerate(tellers):
                for k in range(first, first + STEP):
                    e = Event(rank, k, "all_reduce", group, None, None, "SUM", torch.float32, (16,), 64, outline)
                    e.line, e.start, e.group_name = line, float(k), "0"
                    teller.tell(Called(e))
                    for over in range(k + 1 - together, k + 1) if (k + 1) % together == 0 else ():
                        teller.tell(Waiting(over, k + 0.25, False, "main"))
                        teller.tell(Completed(over, outline, k + 0.5, True, None))
            told, begun = told + time.process_time() - begun, time.process_time()
            for rank, (reader, hearer) in enumerate(readers):
                for piece, lost in reader.read():
                    for text, message in hearer.hear(piece, lost):
                        writer.add(rank, text, message)
                        if message is not None:
                            judge.take(rank, message)
            heard += time.process_time() - begun
        writer.close()
    made = -(-(calls // ranks) // STEP) * STEP * ranks
    print(
        f"{ranks} ranks: {made / heard:,.0f} calls a second are taken in; to tell one takes a rank "
        f"{told / made * 1e6:.1f} us; load {os.getloadavg()[0]:.0f}"
    )


main()
