"""Writes notebooks/calibration.md, the model of chapter 10 and all published sweeps: python -m tools.calibration_page."""

import statistics
from itertools import groupby

from collectives.calibrate.calibrate import FAULT, priced, stretch
from collectives.calibrate.reports import of_sweep
from collectives.cost import Calibration, calibration
from collectives.format import size
from collectives.machines import networks, sweeps
from helpers.course import ROOT

PAGE = ROOT / "notebooks" / "calibration.md"
HEAD = """# The price model beside what others measured
Each row is a sweep that somebody published, most of them by [nccl-tests](https://github.com/NVIDIA/nccl-tests), beside what
`nccl(...)` of [chapter 10](10_what_it_costs.ipynb) says. The figures are in `collectives/machines/sweeps.csv` and
`measurements.csv`; `python -m tools.calibration_page` computes this page from them.

**How to read it.** *Took* is the published time over the model's: 1.20 took a fifth longer than the price. The middle is the
median of the sweep's sizes, and the range is its extremes. *In band* is the share of sizes that lie in the band of the network's
family, and *in that of the others* the share in the band that all sources but the row's own give. *Role*: a constant was taken
from a sweep that is *fitted*; *held out* is a source that was set aside before anything was fitted (a page that gathers the
clusters of several clouds counts as several sources); *form* suggested the shape of the model inside a node; nothing came from
the others. With a *suspect* sweep something is wrong, and it says what.
"""


def page() -> str:
    """The page, as Markdown."""
    table = calibration()
    parts = [HEAD, *_errors(table), *_networks(), *_sweeps(table), *_faults()]
    return "\n".join(parts).rstrip() + "\n"


def _errors(table: Calibration) -> list[str]:
    lines = ["## Errors", "", "Of the rows not used for fitting:", ""]
    lines += ["| rows | how many | sources | median error | worst | in the band | in that of the others |"]
    lines += ["|---|---:|---:|---:|---:|---:|---:|"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in table.summary), "", *_held_against_others(table)]


def _held_against_others(table: Calibration) -> list[str]:
    lines = ["Source by source, each held against the band that all others give:", ""]
    lines += ["| source | network | rows | median error | in that of the others |", "|---:|---|---:|---:|---:|"]
    shares = []
    for number, source in enumerate(_sources(table), 1):
        if rows := Calibration(row for row in table.counted if row.source == source):
            names = ", ".join(dict.fromkeys(row.network for row in rows))
            lines.append(f"| [{number}](#sources) | {names} | {len(rows)} | {rows.median:.0%} | {rows.foreseen:.0%} |")
            shares.append(rows.foreseen)
    lines += [
        "",
        f"With one say for each source, not for each row, {statistics.mean(shares):.0%} lie in that of the others.",
        "",
    ]
    return lines


def _sources(table: Calibration) -> list[str]:
    return list(dict.fromkeys(row.source for row in table))


def _networks() -> list[str]:
    lines = [
        "## Networks",
        "",
        "What software adds to a crossing between nodes, by LL, LL128 and Simple, and the bands (of",
    ]
    lines += ["the price, for buffers up to 256 KiB, at 8 MiB, and from 256 MiB on).", ""]
    lines += [
        "| network | µs a crossing | band, small | band, middle | band, large | largest sweep |",
        "|---|---|---|---|---|---:|",
    ]
    for network in networks().values():
        low, high = (network.value(figure, "this page") for figure in ("low", "high"))
        bands = " | ".join(f"{a:g} to {b:g}" for a, b in zip(low, high))
        hop = ", ".join(f"{s * 1e6:g}" for s in network.value("hop", "this page")) if "hop" in network.figures else ""
        lines.append(f"| {network.name} | {hop} | {bands} | {network.value('gpus', 'this page'):,} GPUs |")
    return [*lines, ""]


def _sweeps(table: Calibration) -> list[str]:
    sources = _sources(table)
    lines = ["## Sweeps", "", "| sweep | network | NCCL | sizes | GB/s | took | in band | role | source |"]
    lines.append("|---|---|---|---|---|---|---:|---|---:|")
    for (what, collective, role), of in groupby(table, lambda row: (row.what, row.collective, row.role)):
        rows = list(of)
        ends = (rows[0], rows[-1])
        sizes = " to ".join(dict.fromkeys(size(row.nbytes) for row in ends))
        speeds = " to ".join(dict.fromkeys(f"{row.published / 1e9:.3g}" for row in ends))
        times = [row.times for row in rows]
        took = f"{statistics.median(times):.2f}" + (f" ({min(times):.2f} to {max(times):.2f})" if len(rows) > 1 else "")
        inside = f"{statistics.mean(row.inside for row in rows):.0%}"
        number = sources.index(rows[0].source) + 1
        lines.append(f"| {what}, {collective} | {rows[0].network} | {rows[0].nccl or ''} | {sizes} | {speeds} | {took} "
                     f"| {inside} | {role} | [{number}](#sources) |")  # fmt: skip
    lines += ["", "Where a sweep is suspect:", ""]
    suspect = dict.fromkeys(f"- {row.what}, {row.collective}: {row.note}" for row in table if row.note)
    lines += [*suspect, "", "### Sources", "", *(f"{k}. {_link(source)}" for k, source in enumerate(sources, 1)), ""]
    return lines


def _link(source: str) -> str:
    address, _, rest = source.partition(",")
    return (
        f"[{address}](https://{address})" + (f",{rest}" if rest else "")
        if address.startswith("github.com/")
        else source
    )


def _faults() -> list[str]:
    lines = [
        "## The rule for faults",
        "",
        f"A sweep looks like a fault if two neighboring sizes take {FAULT} times the upper end",
    ]
    lines += [
        "of the band. These come nearest, or exceed it:",
        "",
        "| times the band's end | sweep | |",
        "|---:|---|---|",
    ]
    far = []
    for sweep in sweeps():
        rows = priced(of_sweep(sweep), sweep.machine, sweep.version)
        far.append((stretch(rows), sweep, bool(rows[0].price.beyond)))
    for above, sweep, beyond in sorted(far, key=lambda each: -each[0])[:14]:
        word = (
            "suspect" if sweep.role == "suspect" else "an extrapolation, so the rule is silent" if beyond else "healthy"
        )
        lines.append(f"| {above:.2f} | {sweep.what}, {sweep.collective} | {word} |")
    return lines


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
