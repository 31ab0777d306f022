"""costs(): the cost of one collective's algorithms from 2 to 131,072 ranks, with sliders."""

from typing import TYPE_CHECKING, Callable

from collectives.algorithms import doubling_all_reduce, rabenseifner_all_reduce, ring_all_reduce, tree_all_reduce
from collectives.algorithms.outline import outline
from collectives.algorithms.schedule import Schedule
from collectives.cost.cost import cost, price
from collectives.format import align, duration, size
from collectives.frontend import Interactive
from collectives.machines.topology import flat

from .web import COST

if TYPE_CHECKING:
    from collectives.draw.chart import Chart

ALGORITHMS = (ring_all_reduce, tree_all_reduce, doubling_all_reduce, rabenseifner_all_reduce)
RANKS = tuple(2**k for k in range(1, 18))
LATENCIES = (1e-6, 2e-6, 5e-6, 10e-6, 20e-6, 50e-6, 100e-6)  # seconds
BANDWIDTHS = (1e9, 3e9, 12.5e9, 25e9, 50e9, 100e9, 400e9)  # bytes/s
FIRST_BYTES = 2**3  # the smallest buffer; each place of its slider doubles it
STILL_VALUES = (1024, 5e-6, 25e9)  # ranks, latency and bandwidth where no slider can be moved


class CostCurves(Interactive):
    """The result of `costs`: sliders over ranks, bytes, latency, bandwidth, or picture and table at 1,024 ranks."""

    def __init__(self, algorithms: tuple[Callable[..., Schedule], ...]) -> None:
        self.algorithms = algorithms

    def __repr__(self) -> str:
        sizes = [2**k for k in (3, 10, 20, 30)]
        rows = [
            (name, "   ".join(f"{size(nbytes)} {duration(seconds(nbytes))}" for nbytes in sizes))
            for name, seconds in self._curves().items()
        ]
        return f"{_title()}\n" + align(rows, indent="  ", gap="", least=(36,))

    def _curves(self) -> dict[str, Callable[[float], float]]:
        """Seconds of each algorithm over the buffer's bytes, by its name."""
        ranks, *machine = STILL_VALUES
        outlines = [outline(algorithm, ranks) for algorithm in self.algorithms]
        prices = {made.name: price(made, flat(*machine)) for made in outlines}
        return {name: lambda nbytes, p=p: p(nbytes).seconds for name, p in prices.items()}

    def draw(self) -> "Chart":
        """Seconds over bytes, log axes, a curve for each algorithm."""
        from collectives.cost.charts import draw_seconds  # matplotlib is slow to import

        return draw_seconds({_title(): self._curves()}, [FIRST_BYTES << k for k in range(31)]).picture

    def recording(self) -> dict:
        """Steps, and the share of the buffer's bytes that the slowest rank's port carries, counted at every number of ranks."""
        counted = []
        for algorithm in self.algorithms:
            outlines = [outline(algorithm, n) for n in RANKS]
            one = [cost(made, 1, flat(1, 1)) for made in outlines]  # 1 s per step, 1 s per byte
            steps, share = zip(*((c.latency, round(c.transfer, 6)) for c in one))
            counted.append({"name": outlines[0].name, "steps": steps, "share": share})
        return {
            "kind": "cost",
            "title": f"What one {outlines[0].collective} takes",
            "algorithms": counted,
            "ranks": RANKS,
            "latency": LATENCIES,
            "bandwidth": BANDWIDTHS,
            "at": {"ranks": 9, "bytes": 17, "latency": 2, "bandwidth": 3},
        }

    def figure(self):
        from collectives.figures.web.widget import Figure  # anywidget may be missing

        return Figure(self.recording(), drawn_by=COST)


def _title() -> str:
    ranks, latency, bandwidth = STILL_VALUES
    return f"{ranks:,} ranks, latency {duration(latency)}, {bandwidth / 1e9:.0f} GB/s"


def costs(*algorithms: Callable[..., Schedule]) -> CostCurves:
    """Sliders over the costs of one collective's algorithms: latency x steps + bytes / bandwidth, up to 131,072 ranks.

    algorithms: functions of a number of ranks, such as ring_all_reduce, that have an outline at any size; all_reduce's
    four by default.  Raises ValueError for one that is too long to write out.
    """
    return CostCurves(algorithms or ALGORITHMS)
