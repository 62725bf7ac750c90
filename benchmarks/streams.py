"""How much of a link the TCP transport uses: with a cap on each connection, and over a long way."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

from benchmarks.lab import Laboratory, Network, missing
from benchmarks.lab_jobs import MIB, measure, order
from benchmarks.records import Records

LINKS = ((1e9, 200e6), (1e9, None), (4e9, None))
"""Bits a second of the link, and of a connection over it."""
DELAY = 0.02
ROUNDS = 3
HOSTS = "h1:1,h2:1"
STREAMS = (1, 2, 4, 8)
BUFFERS = (256 << 10, MIB, 4 * MIB, 16 * MIB)
WARM = 6
"""Turns until the kernel's congestion window has grown over such a way: before, it is the bound,
and not the buffers."""

# One plain connection, whose buffers are left to the kernel: the system's defaults.
_PLAIN = """
import json, socket, sys, time
size, turns, warm = int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
def swallow(link):
    left = size
    while left:
        left -= len(link.recv(min(left, 1 << 18)))
    link.sendall(b"!")
if sys.argv[1] == "serve":
    with socket.create_server(("", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        link = listener.accept()[0]
    for _ in range(turns + warm):
        swallow(link)
else:
    link, block, times = socket.create_connection(("h2", int(sys.argv[5]))), bytes(size), []
    for _ in range(turns + warm):
        began = time.perf_counter()
        link.sendall(block)
        assert link.recv(1) == b"!"
        times.append(time.perf_counter() - began)
    print(json.dumps(sorted(times[warm:])[turns // 2]))
"""


def run(records: Records, quick: bool) -> None:
    """Measures both, or writes why that is not possible here."""
    if reason := missing(delay=True):
        records.write({"skipped": reason})
        print(f"skipped: {reason}")
        return
    size = 4 * MIB if quick else 32 * MIB
    rounds = 1 if quick else ROUNDS
    try:
        for rate, cap in LINKS:
            _numbers(records, Network(rate=rate, flow_cap=cap), size, rounds)
        _delay(records, size, rounds, 1 if quick else WARM)
    except subprocess.SubprocessError as error:
        records.report_failure("horoacc", 2, str(error))


def _numbers(records: Records, network: Network, size: int, rounds: int) -> None:
    """Every number of connections, in turns, and what is chosen."""
    rate, cap = network.rate, network.flow_cap
    assert rate is not None
    work = [order("broadcast", size, 1)]
    entries = [({"HOROACC_TCP_STREAMS": str(k)}, work) for k in STREAMS] + [({}, work)]
    with Laboratory(network) as lab:
        told = measure(lab, HOSTS, entries * rounds)
    rates = _medians([size * 8 / one["time"] for one in told], len(entries))
    where = f"{rate / 1e9:g} Gbit/s the link"
    where = f"{cap / 1e6:g} Mbit/s a connection, {where}" if cap else f"no caps, {where}"
    for k, goodput in zip(STREAMS, rates, strict=False):
        _say(records, f"{where}, {k} connections", goodput, streams=k)
        if cap:
            share = goodput / min(k * cap, rate)
            what = f"{k} connections of at most {cap / 1e6:g} Mbit/s: share of what they may carry"
            records.target(what, share, 0.95, "", at_most=False)
    _say(records, f"{where}, chosen", rates[-1], streams="chosen")
    what = f"{where}: connections that are chosen, against the best fixed number"
    records.target(what, rates[-1] / max(rates[:-1]), 0.95, "x", at_most=False)


def _delay(records: Records, size: int, rounds: int, warm: int) -> None:
    one = {"HOROACC_TCP_STREAMS": "1"}
    entries = [
        (one | {"HOROACC_SOCKET_BUFFER_BYTES": str(buffer)},
         [order("broadcast", min(size, 32 * buffer), 3, warm=warm)])
        for buffer in BUFFERS
    ]  # fmt: skip
    entries.append((one, [order("broadcast", size, 3, warm=warm)]))
    ours: list[float] = []
    plain: list[float] = []
    with Laboratory(Network(delay=DELAY)) as lab:
        for _ in range(rounds):
            ours += [told["bytes"] * 8 / told["time"] for told in measure(lab, HOSTS, entries)]
            plain.append(size * 8 / _plain_seconds(lab, size, 3, warm))
    rates, system = _medians(ours, len(entries)), statistics.median(plain)
    where = f"{DELAY * 1e3:g} ms each way, one connection"
    for buffer, rate in zip(BUFFERS, rates, strict=False):
        _say(records, f"{where}, buffers of {buffer >> 10} KiB", rate, buffer=buffer)
    _say(records, f"{where}, buffers that follow", rates[-1], buffer="follows")
    _say(records, f"{where}, a plain connection with the system's defaults", system)
    what = f"buffers that follow a delay of {DELAY * 1e3:g} ms"
    records.target(f"{what}, against the system's", rates[-1] / system, 1, "x", at_most=False)
    best = rates[-1] / max(rates[:-1])
    records.target(f"{what}, against the best fixed size", best, 0.9, "x", at_most=False)


def _medians(values: list[float], each: int) -> list[float]:
    """Of rounds of so many values."""
    return [statistics.median(values[k::each]) for k in range(each)]


def _plain_seconds(lab: Laboratory, size: int, turns: int, warm: int) -> float:
    words = [sys.executable, "-c", _PLAIN]
    numbers = [str(size), str(turns), str(warm)]
    server = lab.hosts["h2"].popen([*words, "serve", *numbers], stdout=subprocess.PIPE, text=True)
    with server:
        assert server.stdout
        port = server.stdout.readline().strip()
        done = lab.hosts["h1"].run(
            [*words, "send", *numbers, port], stdout=subprocess.PIPE, text=True, timeout=120
        )
    return float(json.loads(done.stdout))


def _say(records: Records, what: str, rate: float, **more: object) -> None:
    records.write({"figure": what, "value": rate, "unit": "bit/s", **more})
    print(f"  {what}: {rate / 1e6:.1f} Mbit/s", flush=True)
