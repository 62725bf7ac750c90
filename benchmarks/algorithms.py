"""Algorithms between hosts of the laboratory, against each other and against the simulator.

Hosts at 1 Gbit/s, of several shapes: what each algorithm sends, how long it takes beside what is
chosen by default, and what the simulator says once its links are fitted to a ping-pong and one
algorithm. All algorithms take turns; a figure is the median of the turns.
"""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Callable, Sequence

from benchmarks.lab import Laboratory, Network, missing
from benchmarks.lab_jobs import MIB, Order, measure, order, shape
from benchmarks.records import Records
from horoacc import _core

RATE = 1e9
SHAPES = ((2, 2), (1, 1, 1, 1), (2, 2, 2), (3, 3))
SIMULATED = SHAPES[:2]
"""More ranks than that are waited for by cores, and not by links."""
SIZES = (4 << 10, MIB, 4 * MIB, 32 * MIB)
ROUNDS = 2
LARGE = 0.9
"""Of the time that is predicted, what bytes alone would take: where it is at least so much,
bandwidth decides, and there the simulator's error is quoted."""
FITTED = "ring"
LEAST_LATENCY = 1e-6
"""Seconds. What is fitted where the ring's rounds cost no more than the ping-pong's calls do: then
what a call costs besides hides the latency."""
ALGORITHMS = ("ring", "double_tree", "hierarchical", "hierarchical_tree", "cpu_reduce", "canonical")
CHOSEN = "chosen"
SCATTERS = {"canonical": 0.5, "ring": 0.75, "log": 1.25}
"""Reduce-scatters, and what they send over a host's link on 2x2, over the vector's bytes."""
Times = dict[tuple[tuple[int, ...], str, int], Order]


def run(records: Records, quick: bool) -> None:
    """Measures all, or writes why that is not possible here."""
    if reason := missing():
        records.write({"skipped": reason})
        print(f"skipped: {reason}")
        return
    sizes = SIZES[:2] if quick else SIZES
    try:
        times, pings, scatters = _measure(sizes, 1 if quick else ROUNDS)
    except subprocess.SubprocessError as error:
        records.report_failure("horoacc", 4, str(error))
        return
    _bytes(records, times, max(sizes))
    _scatters(records, scatters, max(sizes))
    _orders(records, times, sizes)
    _simulated(records, times, pings)


def _measure(sizes: Sequence[int], rounds: int) -> tuple[Times, dict[int, float], dict[str, Order]]:
    """Times by shape, algorithm and size, those of a ping-pong by size, and reduce-scatters."""
    times: Times = {}
    pings = {}
    scatters = {}
    for hosts in SHAPES:
        few, once = {"turns": 3, "batch": 10}, {"turns": 1}
        some = {MIB: {"turns": 7}, 4 * MIB: {"turns": 3}}
        work = [order("allreduce", size, **(few if size <= 64 << 10 else some.get(size, once)))
                for size in sizes]  # fmt: skip
        entries = [({"HOROACC_ALGORITHM": name}, work) for name in _names(hosts)] + [({}, work)]
        forced = {"HOROACC_ALGORITHM": FITTED}
        if hosts in SIMULATED:
            entries.append((forced, [order("pingpong", size, 1, ranks=[[0, sum(hosts) - 1]])
                                     for size in sizes]))  # fmt: skip
        if hosts == SHAPES[0]:
            inside = order("allreduce", max(sizes), 1, ranks=[[0, 1], [2, 3]])
            entries.append((forced, [inside]))
            scatter = [order("reducescatter", max(sizes), 1)]
            entries += [
                ({"HOROACC_ALGORITHM": f"{name}_reduce_scatter"}, scatter) for name in SCATTERS
            ]
        with Laboratory(Network(hosts=len(hosts), rate=RATE)) as lab:
            all_told = measure(lab, shape(hosts), entries * rounds)
        each = len(all_told) // rounds
        for k, told in enumerate(all_told[-each:]):
            told["time"] = statistics.median(one["time"] for one in all_told[k::each])
            name = told["set"].get("HOROACC_ALGORITHM", CHOSEN)
            if told["call"] == "reducescatter":
                scatters[name.partition("_")[0]] = told
            elif told["call"] == "pingpong":
                pings[told["bytes"]] = told["time"]
            elif "ranks" in told:
                pings[0] = told["time"]
            else:
                times[hosts, name, told["bytes"]] = told
    return times, pings, scatters


def _names(hosts: tuple[int, ...]) -> tuple[str, ...]:
    """Trees are for the simulator: they are never the quickest on so few hosts."""
    return ALGORITHMS if hosts in SIMULATED else tuple(n for n in ALGORITHMS if "tree" not in n)


def _bytes(records: Records, times: Times, size: int) -> None:
    for name, most in (("hierarchical", 1.0), ("ring", 1.5), ("canonical", 1.0)):
        sent = times[SHAPES[0], name, size]["sent"]["eth0"] / size
        what = f"2x2, {name}: bytes of a host's link over the vector's"
        print(f"  {what}: {sent:.4f}")
        records.target(what, sent, 1.02 * most, "", at_most=True)


def _scatters(records: Records, scatters: dict[str, Order], size: int) -> None:
    for name, most in SCATTERS.items():
        sent = scatters[name]["sent"]["eth0"] / size
        what = f"2x2, {name} reduce-scatter: bytes of a host's link over the vector's"
        print(f"  {what}: {sent:.4f}, {scatters[name]['time'] * 1e3:.1f} ms")
        records.target(what, sent, 1.02 * most, "", at_most=True)
    row = {name: told["time"] for name, told in scatters.items()}
    records.write({"figure": f"reduce-scatter on 2x2, {size >> 10} KiB", **row})


def _orders(records: Records, times: Times, sizes: Sequence[int]) -> None:
    """Sums in the order of ranks, and what is chosen, against the quickest order."""
    for hosts in SHAPES:
        for size in sorted(sizes):
            row = {name: times[hosts, name, size]["time"] for name in (*_names(hosts), CHOSEN)}
            shown = "  ".join(f"{name} {seconds * 1e3:.2f}" for name, seconds in row.items())
            title = f"{'x'.join(map(str, (len(hosts), hosts[0])))}, {size >> 10} KiB"
            print(f"  {title}, ms: {shown}", flush=True)
            best = min(row[name] for name in _names(hosts) if name != "canonical")
            dearer = row["canonical"] / best
            records.write(
                {"figure": f"allreduce on {title}", **row, "canonical over others": dearer}
            )
            if size >= MIB:
                records.target(f"{title}: what is chosen over the quickest algorithm",
                               row[CHOSEN] / min(best, row["canonical"]), 1.1, "x",
                               at_most=True)  # fmt: skip


def _simulated(records: Records, times: Times, pings: dict[int, float]) -> None:
    fabric, call = fit(times, pings)
    hidden = fabric.network_latency == LEAST_LATENCY
    print(f"  fitted: network_latency {fabric.network_latency:.3g} s"
          f"{' (the least that is fitted: calls hide it)' if hidden else ''}, nic_bandwidth "
          f"{fabric.nic_bandwidth:.4g} B/s, local_bandwidth {fabric.local_bandwidth:.3g} B/s, "
          f"a call besides {call:.3g} s")  # fmt: skip
    records.write({"figure": "fitted links", "network_latency": fabric.network_latency,
                   **({"hidden": "network latency, by calls"} if hidden else {}),
                   "nic_bandwidth": fabric.nic_bandwidth, "call": call,
                   "local_bandwidth": fabric.local_bandwidth})  # fmt: skip
    errors = []
    for (hosts, name, size), told in times.items():
        if hosts not in SIMULATED or name == CHOSEN or (name, hosts) == (FITTED, SHAPES[1]):
            continue
        said = _core.simulate(name, list(hosts), size, fabric).seconds + call
        if _of_bytes(name, hosts, size, fabric) < LARGE * said:
            continue
        error = said / told["time"] - 1
        errors.append(abs(error))
        print(f"  {len(hosts)} hosts, {name}, {size >> 20} MiB: measured {told['time'] * 1e3:.1f} "
              f"ms, simulated {said * 1e3:.1f} ms, {error:+.1%}")  # fmt: skip
        records.write({"figure": f"simulated {name}", "hosts": hosts, "bytes": size,
                       "measured": told["time"], "simulated": said, "error": error})  # fmt: skip
    if errors:
        records.target("largest error of the simulator where bandwidth decides", max(errors), 0.2,
                       "", at_most=True)  # fmt: skip


def _of_bytes(name: str, hosts: tuple[int, ...], size: int, fabric: _core.Fabric) -> float:
    """What the simulator says of links without latency, in seconds."""
    latency, fabric.network_latency = fabric.network_latency, 0.0
    seconds = float(_core.simulate(name, list(hosts), size, fabric).seconds)
    fabric.network_latency = latency
    return seconds


def fit(times: Times, pings: dict[int, float]) -> tuple[_core.Fabric, float]:
    """Finds the links' constants.

    Args:
        times: Of them only those of the ring on hosts of one rank are used.
        pings: Seconds of a vector there and back between two hosts, by bytes; with 0, those of the
            ring's allreduce of the largest inside hosts of two ranks.

    Returns:
        The links, and what a call costs besides.
    """
    fabric = _core.Fabric()
    sizes = sorted(size for size in pings if size > 0)
    small, large = sizes[0], sizes[-1]
    # The network's part of a round: what the ring's rounds cost beyond the ping-pong's two.
    ring = times[SHAPES[1], FITTED, small]["time"]
    rounds = 2 * (len(SHAPES[1]) - 1)
    fabric.network_latency = max(LEAST_LATENCY, (ring - pings[small] / 2) / (rounds - 1))
    call = max(0.0, ring - rounds * fabric.network_latency)
    way = (pings[large] - pings[small]) / 2
    fabric.nic_bandwidth = fabric.stream_bandwidth = (large - small) / way
    fabric.overhead = 0.0
    inside = pings.get(0)
    if inside is not None:

        def time_of(rate: float) -> float:
            fabric.local_bandwidth = fabric.reduce_bandwidth = rate
            fabric.memory_bandwidth = 2 * rate
            return float(_core.simulate(FITTED, [2], large, fabric).seconds) + call

        _bisect(time_of, inside)
    return fabric, call


def _bisect(time_of: Callable[[float], float], wanted: float) -> None:
    """Leaves `time_of` at the rate for which it gives what is wanted, or at the nearest."""
    low, high = 1e8, 1e12
    for _ in range(50):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if time_of(middle) > wanted else (low, middle)
