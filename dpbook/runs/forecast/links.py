"""Links of a forecast: given by a short name or a rate, or measured between ranks of this machine."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dpbook.collectives import AlphaBeta, Link, closed_forms, fit
from dpbook.core import InvalidArgument, plural
from dpbook.planning import LINKS
from dpbook.ranks import Sweep

SHORT_NAMES = {
    "1GbE": "Ethernet 1 Gb/s",
    "25GbE": "Ethernet 25 Gb/s",
    "100GbE": "Ethernet 100 Gb/s",
    "HDR": "InfiniBand HDR 200 Gb/s",
    "NDR": "InfiniBand NDR 400 Gb/s",
    "XDR": "InfiniBand XDR 800 Gb/s",
    "PCIe4": "PCIe 4.0 x16",
    "NVLink3": "NVLink 3",
    "NVLink4": "NVLink 4",
    "NVLink5": "NVLink 5",
}
"""Short names for the command line, and the links of `planning.LINKS` that they stand for."""
NVLINK_DOMAINS = {"NVLink3": (8, "a DGX A100"), "NVLink4": (8, "a DGX H100"), "NVLink5": (72, "a GB200 NVL72")}
"""GPUs that NVLink joins in NVIDIA's usual systems, by its short name; between these systems there is a network."""
RATE = re.compile(r"(\d+(?:\.\d+)?)([MG])(b|B)/s(?:\+(\d+(?:\.\d+)?)us)?")
"""Rate such as 500Mb/s or 12GB/s+5us: bits or bytes per second in one direction, and a latency."""


@dataclass(frozen=True)
class Connection:
    """A link, of which every rank has one port, and the fits of all-reduces that were measured on it, by world size."""

    name: str
    link: Link
    fits: Mapping[int, AlphaBeta] = field(default_factory=dict)

    def price(self, world: int) -> AlphaBeta:
        """Return the price of an all-reduce: the measured one if there is one, else that of a ring."""
        return self.fits.get(world) or closed_forms.ring(world, self.link)


def connection(text: str) -> Connection:
    """Return the link of a short name (in any case) or of a rate. Raises `InvalidArgument`, `UnitsError`."""
    for short, name in SHORT_NAMES.items():
        if text.lower() in (short.lower(), name.lower()):
            return Connection(short, LINKS[name])
    if not (rate := RATE.fullmatch(text)):
        known = ", ".join(SHORT_NAMES)
        raise InvalidArgument("link", text, f"one of {known}, or a rate such as 10Gb/s, 500Mb/s+50us or 12GB/s")
    number = float(rate[1]) / (1000 if rate[2] == "M" else 1)
    make = Link.gigabits if rate[3] == "b" else Link.gigabytes
    return Connection(text, make(number, latency=float(rate[4] or 0) * 1e-6))


def domain_note(name: str, worlds: Iterable[int]) -> str | None:
    """Return a note if more GPUs than one NVLink domain joins are forecast over the link ``name``, else None."""
    if name not in NVLINK_DOMAINS:
        return None
    joined, system = NVLINK_DOMAINS[name]
    larger = sorted({world for world in worlds if world > joined})
    if not larger:
        return None
    return (
        f"{name} joins {joined} GPUs ({system}), so the step on {' and on '.join(map(str, larger))} GPUs is too short: "
        "a network carries gradients between nodes. Give --link the network's link, such as NDR"
    )


def fit_connection(sweep: Sweep) -> Connection:
    """Fit a line to the all-reduces of this machine; the link is that of a ring which would take as long.

    Raises `InvalidArgument` for a sweep of one rank.
    """
    if sweep.world < 2:
        raise InvalidArgument("sweep", sweep.world, "one of two ranks or more")
    line = fit(sweep.nbytes, sweep.seconds).model
    hops, share = 2 * (sweep.world - 1), 2 * (sweep.world - 1) / sweep.world
    link = Link(line.alpha / hops, share * line.bandwidth)
    return Connection(f"here, {plural(sweep.world, 'rank')}", link, {sweep.world: line})
