"""Draws how allreduce scales by the simulator: `python -m benchmarks.scaling [PICTURE]`.

Latency of 4 KiB and bandwidth of 64 MiB against the number of ranks, on hosts of eight, with the
simulator's usual constants. Nothing here is measured.
"""

from __future__ import annotations

import sys
from pathlib import Path

from horoacc import _core

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "images" / "scaling.png"
LOCAL = 8
HOSTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3072)
SMALL, LARGE = 4 << 10, 64 << 20
ALGORITHMS = {
    "ring": ("flat ring", "#c1666b"),
    "hierarchical": ("2-D, rings", "#d4a24c"),
    "double_tree": ("double tree", "#5fb49c"),
    "hierarchical_tree": ("2-D, double tree", "#0b6e4f"),
}


def draw(path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    fabric = _core.Fabric()
    ranks = [LOCAL * hosts for hosts in HOSTS]
    figure, (latency, bandwidth) = pyplot.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
    for name, (label, colour) in ALGORITHMS.items():
        shapes = [[LOCAL] * hosts for hosts in HOSTS]
        small = [_core.simulate(name, shape, SMALL, fabric).seconds for shape in shapes]
        large = [_core.simulate(name, shape, LARGE, fabric).seconds for shape in shapes]
        latency.plot(ranks, [s * 1e6 for s in small], "o-", ms=3, color=colour, label=label)
        bandwidth.plot(ranks, [LARGE / s / 1e9 for s in large], "o-", ms=3, color=colour)
    latency.set(title="4 KiB", ylabel="µs (simulated)", yscale="log")
    bandwidth.set(title="64 MiB", ylabel="S/t in GB/s (simulated)", ylim=(0, None))
    for axes in (latency, bandwidth):
        axes.set(xscale="log", xlabel=f"ranks, {LOCAL} a host")
        axes.grid(alpha=0.3)
    latency.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE)
