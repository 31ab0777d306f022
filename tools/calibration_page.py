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
TEMPLATE = ROOT / "tools" / "calibration_page.txt"


def page() -> str:
    """The page, as Markdown."""
    table = calibration()
    sources = list(dict.fromkeys(row.source for row in table))
    parts = {
        "errors": _errors(table),
        "held": _held_against_others(table, sources),
        "networks": _networks(),
        "sweeps": _sweeps(table, sources),
        "suspect": list(dict.fromkeys(f"- {row.what}, {row.collective}: {row.note}" for row in table if row.note)),
        "sources": [f"{k}. {_link(source)}" for k, source in enumerate(sources, 1)],
        "faults": _faults(),
    }
    text = TEMPLATE.read_text(encoding="utf-8")
    return text.format(fault=FAULT, **{name: "\n".join(lines) for name, lines in parts.items()})


def _errors(table: Calibration) -> list[str]:
    lines = ["| rows | how many | sources | median error | worst | in the band | in that of the others |"]
    lines += ["|---|---:|---:|---:|---:|---:|---:|"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in table.summary)]


def _held_against_others(table: Calibration, sources: list[str]) -> list[str]:
    lines = ["| source | network | rows | median error | in that of the others |", "|---:|---|---:|---:|---:|"]
    shares = []
    for number, source in enumerate(sources, 1):
        if rows := Calibration(row for row in table.counted if row.source == source):
            names = ", ".join(dict.fromkeys(row.network for row in rows))
            lines.append(f"| [{number}](#sources) | {names} | {len(rows)} | {rows.median:.0%} | {rows.foreseen:.0%} |")
            shares.append(rows.foreseen)
    share = f"{statistics.mean(shares):.0%}"
    return [*lines, "", f"With one say for each source, not for each row, {share} lie in that of the others."]


def _networks() -> list[str]:
    lines = [
        "| network | µs a crossing | band, small | band, middle | band, large | largest sweep |",
        "|---|---|---|---|---|---:|",
    ]
    for network in networks().values():
        low, high = (network.value(figure, "this page") for figure in ("low", "high"))
        bands = " | ".join(f"{a:g} to {b:g}" for a, b in zip(low, high))
        hop = ", ".join(f"{s * 1e6:g}" for s in network.value("hop", "this page")) if "hop" in network.figures else ""
        lines.append(f"| {network.name} | {hop} | {bands} | {network.value('gpus', 'this page'):,} GPUs |")
    return lines


def _sweeps(table: Calibration, sources: list[str]) -> list[str]:
    lines = ["| sweep | network | NCCL | sizes | GB/s | took | in band | role | source |"]
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
    return lines


def _link(source: str) -> str:
    address, _, rest = source.partition(",")
    return (
        f"[{address}](https://{address})" + (f",{rest}" if rest else "")
        if address.startswith("github.com/")
        else source
    )


def _faults() -> list[str]:
    lines = ["| times the band's end | sweep | |", "|---:|---|---|"]
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
