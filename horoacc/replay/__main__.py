"""`python -m horoacc.replay`: what `horoaccrun replay` runs, on every rank or once.

A recording is in what `horoaccrun report` writes, and can be made of flight records.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from horoacc import _core, schedule
from horoacc.errors import HoroaccError
from horoacc.launcher.look.recording import Recording, RecordingError, load
from horoacc.replay import predict, run
from horoacc.schedule import format_seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 1 if there is nothing to replay or a call fails."""
    given = _parser().parse_args(arguments)
    try:
        recording = load(Path(given.record))
        if given.simulate:
            _simulate(recording, given)
        else:
            _run(recording, given)
    except (RecordingError, HoroaccError, ValueError) as error:
        print(f"horoaccrun replay: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="horoaccrun replay", description="Makes a recorded job's calls once more.",
    )  # fmt: skip
    parser.add_argument("record", help="a folder of `horoaccrun report`, its calls.json, or a "
                        "folder of flight records")  # fmt: skip
    parser.add_argument("--compute", type=_factor, default=1.0, metavar="FACTOR",
                        help="computation takes so many times as long")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="an object for programs")
    parser.add_argument("--passes", type=int, default=3, help="over the recorded steps, after one "
                        "that does not count")  # fmt: skip
    parser.add_argument("--idle", action="store_true", help="ranks sleep in the gaps")
    parser.add_argument("--no-arena", action="store_true", help="arrays in private memory")
    simulated = parser.add_argument_group("in the simulator, for other hosts and links")
    simulated.add_argument("--simulate", action="store_true")
    simulated.add_argument("--hosts", type=int, default=2)
    simulated.add_argument("--local", type=int, default=1, help="ranks of each host")
    simulated.add_argument("--algorithm", choices=_core.algorithms(), help="of allreduces; the "
                           "quickest by default")  # fmt: skip
    simulated.add_argument("--gbits", type=_factor, help="Gbit/s of an interface, and of a stream")
    simulated.add_argument("--call-seconds", type=float, default=predict.CALL_SECONDS,
                           help="what a call costs beside its bytes")  # fmt: skip
    for constant in schedule.CONSTANTS:
        simulated.add_argument("--" + constant.replace("_", "-"), type=float)
    simulated.add_argument("--nics", type=int, help="interfaces of each host")
    return parser


def _factor(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not between 0 and a million")
    return value


def _run(recording: Recording, given: argparse.Namespace) -> None:
    measured = run.replay(
        recording, given.compute, max(1, given.passes), not given.no_arena, given.idle
    )
    if measured is None:  # rank 0 tells
        return
    facts = {"recorded": recording.seconds, "step": measured.step, "waiting": measured.waiting,
             "ranks": measured.ranks, "steps": recording.steps}  # fmt: skip
    _tell(given, facts, [
        f"recorded: {_of(recording)}",
        f"replayed by {measured.ranks} ranks: {format_seconds(measured.step)} a step, of which "
        f"rank 0 waits {format_seconds(measured.waiting)}",
    ])  # fmt: skip


def _simulate(recording: Recording, given: argparse.Namespace) -> None:
    if given.gbits is not None:
        rate = given.gbits * 1e9 / 8
        given.nic_bandwidth = given.nic_bandwidth or rate
        given.stream_bandwidth = given.stream_bandwidth or rate
    hosts = [given.local] * given.hosts
    if min(hosts, default=0) < 1:
        raise ValueError("--hosts and --local are at least 1")
    fabric = schedule.fabric_of(given)
    told = predict.predict(
        recording, hosts, fabric, given.compute, given.algorithm, given.call_seconds
    )
    facts = {"recorded": recording.seconds, "step": told.step, "waiting": told.waiting,
             "ranks": sum(hosts), "steps": recording.steps,
             "algorithms": sorted(told.algorithms)}  # fmt: skip
    links = ", ".join(f"{name} {getattr(fabric, name):g} {unit}"
                      for name, unit in schedule.CONSTANTS.items())  # fmt: skip
    _tell(given, facts, [
        f"recorded: {_of(recording)}",
        f"links: {links}, nics {fabric.nics}, {given.call_seconds:g} s a call",
        f"predicted for {sum(hosts)} ranks on {len(hosts)} hosts: {format_seconds(told.step)} a "
        f"step, of which rank 0 waits {format_seconds(told.waiting)}; allreduces by "
        f"{', '.join(sorted(told.algorithms)) or 'none'}",
        f"error: {predict.ERROR}",
    ])  # fmt: skip


def _of(recording: Recording) -> str:
    hosts = len(set(recording.hosts))
    size = sum(max(call.bytes, default=0) for call in recording.calls) / recording.steps
    return (
        f"{recording.steps} steps of {len(recording.ranks)} ranks on {hosts} "
        f"{'host' if hosts == 1 else 'hosts'}, {format_seconds(recording.seconds)} each, with "
        f"{len(recording.calls) / recording.steps:.4g} calls of {size / 2**20:.4g} MiB"
    )


def _tell(given: argparse.Namespace, facts: Mapping[str, object], lines: Sequence[str]) -> None:
    print(json.dumps(dict(facts)) if given.json else "\n".join(lines), flush=True)


if __name__ == "__main__":
    sys.exit(main())
