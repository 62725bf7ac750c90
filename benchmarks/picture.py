"""The picture of the allreduce figures: time, and how many times faster than the best peer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_COLOURS = {
    "horoacc arena": "#0b6e4f",
    "horoacc private": "#5fb49c",
    "gloo": "#c1666b",
    "openmpi": "#d4a24c",
    "mpich": "#6a7fb5",
    "memory bound": "#555555",
}
_LABELS = {
    "horoacc arena": "HoroACC, arena",
    "horoacc private": "HoroACC, private memory",
    "gloo": "Gloo",
    "openmpi": "Open MPI",
    "mpich": "MPICH",
    "memory bound": "memory bound",
}
_PEERS = ("gloo", "openmpi", "mpich")
Lines = dict[str, dict[int, float]]


def lines(records: list[dict[str, Any]], ranks: int) -> Lines:
    """Times in microseconds by system and size."""
    found: Lines = {}
    for record in records:
        if record["benchmark"] == "allreduce" and "time" in record and record["ranks"] == ranks:
            found.setdefault(record["system"], {})[record["size"]] = record["time"]
    return found


def draw(records: list[dict[str, Any]], path: Path) -> bool:
    """Draws what the benchmark `allreduce` recorded.

    Args:
        records: Its records.
        path: The PNG file to write.

    Returns:
        Whether there was anything to draw, and something to draw with.
    """
    every = sorted({r["ranks"] for r in records if r["benchmark"] == "allreduce" and "time" in r})
    if not every:
        return False
    try:
        import matplotlib as mpl
    except ImportError:
        print("no picture: matplotlib is not installed")
        return False
    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        2, len(every), figsize=(4.3 * len(every), 6.6), squeeze=False, sharex="col", sharey="row",
        gridspec_kw={"height_ratios": (3, 2)}, layout="constrained",
    )  # fmt: skip
    for column, ranks in enumerate(every):
        found = lines(records, ranks)
        _times(axes[0][column], found)
        _ratios(axes[1][column], found)
        axes[0][column].set_title(f"{ranks} ranks")
        axes[1][column].set_xlabel("size of the tensor")
    # After all columns: a limit ends the scaling to what is drawn.
    axes[1][0].set_ylim(bottom=0)
    axes[0][0].set_ylabel("time of one allreduce")
    axes[1][0].set_ylabel("times faster than the best peer")
    axes[0][0].legend(frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return True


def _times(axis: Any, found: Lines) -> None:
    for system, colour in _COLOURS.items():
        points = sorted(found.get(system, {}).items())
        style = ":" if system == "memory bound" else "-"
        width = 2.2 if system.startswith("horoacc") else 1.4
        axis.plot(*zip(*points, strict=True) if points else ([], []), style, color=colour,
                  linewidth=width, label=_LABELS[system])  # fmt: skip
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(lambda us, _: _time(us))
    _sizes(axis)


def _ratios(axis: Any, found: Lines) -> None:
    for system in ("horoacc arena", "horoacc private"):
        points = []
        for size, own in sorted(found.get(system, {}).items()):
            peers = [found[peer][size] for peer in _PEERS if size in found.get(peer, {})]
            if peers:
                points.append((size, min(peers) / own))
        axis.plot(*zip(*points, strict=True) if points else ([], []), color=_COLOURS[system],
                  linewidth=2.2)  # fmt: skip
    axis.axhline(1, color="#999999", linewidth=0.8)
    _sizes(axis)


def _sizes(axis: Any) -> None:
    axis.set_xticks([1 << shift for shift in range(10, 28, 4)])
    axis.xaxis.set_major_formatter(lambda size, _: _size(size))
    axis.minorticks_off()
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def _size(size: float) -> str:
    return f"{size / (1 << 20):g} MiB" if size >= 1 << 20 else f"{size / 1024:g} KiB"


def _time(microseconds: float) -> str:
    for factor, unit in ((1e6, "s"), (1e3, "ms")):
        if microseconds >= factor:
            return f"{microseconds / factor:g} {unit}"
    return f"{microseconds:g} µs"
