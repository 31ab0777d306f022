"""The picture of some calls of a run, a panel each."""

from __future__ import annotations

from ..format import span
from ..record import provenance
from ..record.calls import Call
from ..record.text import block_table
from .canvas import SOFT, Canvas, Picture
from .collective import collective
from .spacetime import barrier, space_time


def picture(shown: list[list[Call]]) -> Picture:
    """The picture of some blocks of calls (see record.blocks), a panel each."""
    if not shown:
        nothing = Canvas()
        nothing.text(0, 10, "no communication", tint=SOFT, align="left")
        return Picture([nothing], "no communication", "Picture: no communication")
    drawn = [panel(block) for block in shown]
    text = "\n\n".join(map(block_table, shown))
    return Picture([sketch for sketch, _ in drawn], text, "Picture: " + "; ".join(alt for _, alt in drawn))


def panel(block: list[Call]) -> tuple[Canvas, str]:
    """One block, and what it shows in a few words."""
    call = block[0]
    if call.is_message:
        return space_time(block)
    if call.op in ("barrier", "monitored_barrier"):
        return barrier(call), f"{call.op}, ranks {span(call.group)}"
    return collective(call), f"{provenance.how(call.events[0])}, ranks {span(call.group)}, before and after"
