"""Steps of networks that were recorded on one host: what is predicted of others, and what is so.

Four ranks train on one host of the laboratory and leave a record. The simulator, with links fitted
as in `benchmarks.algorithms`, and a replay by real ranks say what a step takes on 2x2 and 4x1
hosts at 1 Gbit/s, where the networks are trained, too.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import algorithms
from benchmarks.lab import Laboratory, Network, missing
from benchmarks.lab_jobs import MIB, MPIRUN, SECONDS, measure, order, shape
from benchmarks.nets import NETS
from benchmarks.records import Records
from benchmarks.systems import environ
from horoacc import _core
from horoacc.launcher.look.recording import load
from horoacc.replay.predict import predict

SHAPES = ((2, 2), (1, 1, 1, 1))
RANKS = 4
STEPS = {"mlp": 12, "cnn": 60, "deep": 60}
TURNS = 3
SIZES = (4 << 10, 4 * MIB)


def run(records: Records, quick: bool) -> None:
    """Measures all, or writes why that is not possible here."""
    if reason := missing():
        records.write({"skipped": reason})
        print(f"skipped: {reason}")
        return
    nets = ("deep",) if quick else tuple(NETS)
    turns = 1 if quick else TURNS
    try:
        with tempfile.TemporaryDirectory() as folder:
            own = {net: _record(net, Path(folder) / net) for net in nets}
            fabric, call = _links()
            for hosts in SHAPES:
                for net in nets:
                    _compare(records, net, Path(folder) / net, own[net], hosts, fabric, call, turns)
    except subprocess.SubprocessError as error:
        records.report_failure("horoacc", RANKS, str(error))


def _record(net: str, folder: Path) -> float:
    """Trains on one host, and leaves a record there; gives the seconds of a step."""
    folder.mkdir()
    with Laboratory(Network(hosts=1, rate=algorithms.RATE)) as lab:
        return _train(lab, (RANKS,), net, str(folder))


def _train(lab: Laboratory, hosts: Sequence[int], net: str, *folder: str) -> float:
    program = [sys.executable, "-m", "benchmarks.replays.rank", net, str(STEPS[net]), *folder]
    return float(_job(lab, hosts, program)["time"])


def _replay(lab: Laboratory, hosts: Sequence[int], folder: Path) -> float:
    program = [sys.executable, "-m", "horoacc.replay", str(folder), "--json", "--idle"]
    return float(_job(lab, hosts, program)["step"])


def _job(lab: Laboratory, hosts: Sequence[int], program: Sequence[str]) -> dict[str, Any]:
    done = lab.hosts["h1"].run(
        [sys.executable, "-m", "horoacc.launcher.main", "--tcp", "--mpirun", str(MPIRUN),
         "-H", shape(hosts), *program],
        env=environ() | {"HOROACC_SELECTION_TABLE": "off"}, stdout=subprocess.PIPE, text=True,
        check=True, timeout=SECONDS,
    )  # fmt: skip
    told = next(line for line in done.stdout.splitlines() if "] {" in line)
    return dict(json.loads(told.partition("] ")[2]))


def _links() -> tuple[_core.Fabric, float]:
    """The laboratory's links as the simulator has them, and what a call costs besides."""
    forced = {"HOROACC_ALGORITHM": algorithms.FITTED}
    apart = SHAPES[1]
    with Laboratory(Network(hosts=len(apart), rate=algorithms.RATE)) as lab:
        ring, *pings = measure(lab, shape(apart), [(forced, [
            order("allreduce", SIZES[0], 7, batch=10),
            *(order("pingpong", size, 3, ranks=[[0, RANKS - 1]]) for size in SIZES),
        ])])  # fmt: skip
    with Laboratory(Network(hosts=2, rate=algorithms.RATE)) as lab:
        inside = [order("allreduce", SIZES[1], 3, ranks=[[0, 1], [2, 3]])]
        (within,) = measure(lab, shape(SHAPES[0]), [(forced, inside)])
    times = {0: within["time"]} | {ping["bytes"]: ping["time"] for ping in pings}
    return algorithms.fit({(apart, algorithms.FITTED, SIZES[0]): ring}, times)


def _compare(
    records: Records, net: str, folder: Path, own: float, hosts: tuple[int, ...],
    fabric: _core.Fabric, call: float, turns: int,
) -> None:  # fmt: skip
    recording = load(folder)
    said = predict(recording, hosts, fabric, call_seconds=call).step
    with Laboratory(Network(hosts=len(hosts), rate=algorithms.RATE)) as lab:
        pairs = [(_train(lab, hosts, net), _replay(lab, hosts, folder)) for _ in range(turns)]
    measured, replayed = (statistics.median(times) for times in zip(*pairs, strict=True))
    title = f"{net} on {len(hosts)}x{hosts[0]}"
    print(
        f"  {title}: a step of {own * 1e3:.2f} ms on one host (recorded: "
        f"{recording.seconds * 1e3:.2f}) takes {measured * 1e3:.2f} ms, replayed "
        f"{replayed * 1e3:.2f}, simulated {said * 1e3:.2f}",
        flush=True,
    )
    records.write({"figure": f"replay of {title}", "recorded": recording.seconds,
                   "measured": measured, "replayed": replayed, "simulated": said})  # fmt: skip
    for way, seconds in (("simulated", said), ("replayed", replayed)):
        records.target(f"{title}: error of the {way} step", abs(seconds / measured - 1), 0.2, "",
                       at_most=True)  # fmt: skip
