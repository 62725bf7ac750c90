"""What it costs a training step on 2 ranks that the job can be looked at.

Two jobs train the same network in blocks that take turns: one keeps flight records, serves and
writes metrics and has its sockets for `horoaccrun top`; the other does nothing of that. Each pair
of blocks gives a ratio, and the interval of their median judges. The last case has `top` ask the
job each second, on cores that the ranks need.
"""

from __future__ import annotations

import contextlib
import importlib.util
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import systems
from benchmarks.group import Group, GroupFailed, groups
from benchmarks.lockstep import RANKS, TOGETHER, WARM_STEPS, Copy, train
from benchmarks.rank import Rank
from benchmarks.records import Records
from horoacc.trials import interval

_PAIRS, _BLOCK_SECONDS, _WATCHED_PAIRS, _WATCHED_SECONDS = 200, 0.08, 15, 2.0
_LIMIT = 0.5
_NETS = {"ResNet-20-shaped CNN, batch 16": "cnn", "100 x Linear(64,64), batch 32": "deep"}
_NOTHING = {"HOROACC_FLIGHT_EVENTS": "0"}


def build(rank: Rank, net: str) -> None:
    """Makes the network of this rank."""
    rank.kept["meet"] = {TOGETHER: lambda: None}
    rank.kept[TOGETHER] = Copy(rank, net, "optimizer", TOGETHER)


def run(records: Records, quick: bool) -> None:
    """Measures two networks, and one of them while `top` shows it."""
    report_failure = records.reporter_of_failures(RANKS)
    if not importlib.util.find_spec("torch"):
        records.write({"skipped": "torch is not installed"})
        return
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        everything = {
            "HOROACC_METRICS_PORT": str(_free_port()), "HOROACC_METRICS_SECONDS": "1",
            "HOROACC_METRICS_FILE": str(folder / "horoacc.prom"),
            "HOROACC_LOOK_DIR": str(folder / "look"),
        }  # fmt: skip
        up = []
        for variables in (_NOTHING | {"HOROACC_LOOK_DIR": str(folder / "other")}, everything):
            job = groups(["horoacc"], RANKS, report_failure, False, **variables)
            up += stack.enter_context(job).values()
        if len(up) < 2:
            return
        plain, seen = up
        try:
            for what, net in _NETS.items():
                for group in up:
                    group.run(build, net)
                _measure(records, plain, seen, what, 6 if quick else _PAIRS, _BLOCK_SECONDS)
            with _top(folder / "look"):
                count = 6 if quick else _WATCHED_PAIRS
                _measure(records, plain, seen, f"{what}, with top", count, _WATCHED_SECONDS)
        except GroupFailed as error:
            report_failure("horoacc", str(error))


def _measure(
    records: Records, plain: Group, seen: Group, what: str, count: int, seconds: float
) -> None:
    slower = max(max(group.run(train, TOGETHER, 3)) for group in (plain, seen))
    steps = max(1, round(seconds / slower))
    took: dict[Group, list[list[float]]] = {plain: [], seen: []}  # by turn, of `trained`
    for turn in range(count):
        for group in (plain, seen) if turn % 2 else (seen, plain):
            of_ranks = group.run(trained, steps)
            took[group].append([sum(times) / RANKS for times in zip(*of_ranks, strict=True)])
    for at, of in enumerate(("a step", "a step's processor time")):
        without = [turn[at] for turn in took[plain]]
        pairs = zip(took[seen], without, strict=True)
        low, median, high = interval([100 * (turn[at] / own - 1) for turn, own in pairs])
        records.target(
            f"{what}: what flight records, metrics and sockets add to {of}", median, _LIMIT, "%",
            True, interval=(low, high), note=f"{1e3 * interval(without).median:.3g} ms without",
            pairs=count, steps=steps,
        )  # fmt: skip


def trained(rank: Rank, steps: int) -> tuple[float, float]:
    """Trains; gives the seconds of a step, and those of a processor, of all of the rank's threads.

    Other work on the machine changes the second ones much less.
    """
    used = time.process_time()
    seconds = train(rank, TOGETHER, steps)
    return seconds, (time.process_time() - used) / (steps + WARM_STEPS)


@contextlib.contextmanager
def _top(sockets: Path) -> Iterator[None]:
    """`horoaccrun top` shows the job meanwhile."""
    watching = subprocess.Popen(
        [str(Path(sys.executable).parent / "horoaccrun"), "top"], stdout=subprocess.DEVNULL,
        env=systems.environ() | {"HOROACC_LOOK_DIR": str(sockets)},
    )  # fmt: skip
    try:
        yield
        if watching.poll() is not None:
            raise GroupFailed(f"top ended with {watching.returncode}")
    finally:
        watching.terminate()
        watching.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
