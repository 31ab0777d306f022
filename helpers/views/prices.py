"""network_prices(): NCCL's times on several networks, with bands, and sliders for collective, GPUs and bytes."""

from functools import cached_property
from typing import TYPE_CHECKING, Iterable

from collectives.cost.tuner import Nccl, nccl
from collectives.format import align, duration, size
from collectives.frontend import Interactive
from collectives.machines.presets import rails

from .web import COST

if TYPE_CHECKING:
    from collectives.draw.chart import Chart

NETWORKS = {  # name -> network, and bytes/s of a GPU's card
    "InfiniBand, RoCE": ("verbs", 50e9),
    "gIB (A3 Ultra, A4)": ("gIB", 50e9),
    "EFA (p5en, p6)": ("EFA", 50e9),
    "EFA (p5)": ("EFA, p5", 50e9),
    "TCPXO (A3 Mega)": ("TCPXO", 25e9),
    "TCPX (A3 High)": ("TCPX", 12.5e9),
}
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
GPUS = (16, 32, 64, 128, 256, 1024, 4096, 16384)  # in nodes of 8 H100
BYTES = tuple(2**k for k in range(3, 35))
STILL_VALUES = ("all_reduce", 16)  # the collective and the GPUs where no slider can be moved


class NetworkPrices(Interactive):
    """The result of `network_prices`: sliders over collective, GPUs, bytes, or an all_reduce's picture and table."""

    def __repr__(self) -> str:
        sizes = [2**k for k in (3, 10, 20, 30)]
        rows = [("", *map(size, sizes))]
        for name, price in self._still.items():
            costs = [price(nbytes) for nbytes in sizes]
            rows.append((f"  {name}", *(duration(cost.seconds) for cost in costs)))
            rows.append(("    nine of ten", *(" to ".join(map(duration, cost.band)) for cost in costs)))
        return f"{_title()}\n" + align(rows, right=range(1, 5))

    @cached_property
    def _still(self) -> dict[str, Nccl]:
        collective, gpus = STILL_VALUES
        return {name: _price(collective, gpus, name) for name in NETWORKS}

    def draw(self) -> "Chart":
        """Seconds over bytes, log axes, a curve with its band for each network."""
        from collectives.cost.charts import draw_seconds  # matplotlib is slow to import

        return draw_seconds({_title(): self._still}, BYTES).picture

    def recording(self) -> dict:
        """Seconds at every number of GPUs and size, and each network's band, which is the same for all numbers of GPUs."""
        collectives, networks = [], []
        for collective in COLLECTIVES:
            priced = [[_price(collective, gpus, name) for gpus in GPUS] for name in NETWORKS]
            table = [[_row(price(nbytes).seconds for nbytes in BYTES) for price in row] for row in priced]
            collectives.append({"name": collective, "seconds": table})
        for name in NETWORKS:
            network = _price(STILL_VALUES[0], STILL_VALUES[1], name).network
            low, high = map(_row, zip(*(network.band(nbytes) for nbytes in BYTES)))
            networks.append({"name": name, "most": network.value("gpus", "network_prices()"), "low": low, "high": high})
        return {
            "kind": "prices",
            "title": "How long NCCL takes on nodes of 8 H100, by network",
            "collectives": collectives,
            "networks": networks,
            "gpus": GPUS,
            "bytes": BYTES,
            "at": {"collective": 0, "gpus": 0, "bytes": 0},
        }

    def figure(self):
        from collectives.figures.web.widget import Figure  # anywidget may be missing

        return Figure(self.recording(), drawn_by=COST)


def _price(collective: str, gpus: int, name: str) -> Nccl:
    network, card = NETWORKS[name]
    return nccl(collective, rails(gpus // 8, nic=card, network=network))


def _row(values: Iterable[float]) -> str:
    """Numbers with three figures, between spaces: in a notebook's file each would take its own line."""
    return " ".join(f"{value:.3g}" for value in values)


def _title() -> str:
    collective, gpus = STILL_VALUES
    return f"{collective}, {gpus // 8} nodes of 8 x H100"


def network_prices() -> NetworkPrices:
    """Sliders over NCCL's times on six networks: the price, and the band in which nine of ten systems are expected."""
    return NetworkPrices()
