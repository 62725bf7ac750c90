"""Disturbs jobs at random: python tests/faults/chaos.py [--seconds 180] [--seed 0]

Each job has 8 ranks on 4 hosts that do collectives drawn from a seed and check every bit
(`chaos_rank.py`). Jobs take turns between two networks:

- *lab*: hosts of the network laboratory, each with its own kernel addresses. Ranks are stopped and
  continued, hosts lose their cables and get them back; at last a rank or a host is killed, stays
  stopped, or stays unplugged.
- *proxy*: simulated hosts, with a fault proxy before each rank. Bytes come late, or not for a
  while; at last a rank is killed or stays stopped, a connection is reset, or a byte is damaged.

A job may also end by itself. After what ends it, every rank that lives must have the error that
names the culprit, in time; nothing may be left, and no rank may ever have a wrong bit.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "launcher"))

from gates import Fault, Passage
from launcher_jobs import Job
from linked_ranks import LinkedRanks

from benchmarks.lab import Laboratory, Network

HOSTS, EACH = 4, 2
RANKS = HOSTS * EACH
PROGRAM = str(Path(__file__).with_name("chaos_rank.py"))
# TCP repeats after 0.2, 0.6, 1.4 and 3 s: of an outage of 1 s, which a busy machine makes two,
# it may hear only then that it is over.
HOST_TIMEOUT, HANG = 6, 6
# From a fault to the errors: docs/faults.md, and what a machine with more ranks than cores adds.
SECONDS = {"die": 3.0, "lose": 3.0, "vanish": HOST_TIMEOUT + 4.0, "hang": HANG + 4.0}
LIMITS = {
    "HOROACC_HOST_TIMEOUT_SECONDS": str(HOST_TIMEOUT),
    "HOROACC_HEARTBEAT_TIMEOUT_SECONDS": str(HANG),
    "HOROACC_HEARTBEAT_WARNING_SECONDS": "0",
    "HOROACC_TCP_CHECKSUMS": "1",
}


class Chaos:
    """One job and what befalls it."""

    def __init__(self, draw: random.Random, folder: Path, job: Job) -> None:
        self.draw = draw
        self.told: Counter[str] = Counter()
        """How often each disturbance befell it."""
        self.late: dict[str, float] = {}
        """The last error's seconds after its cause."""
        seed = draw.randrange(1 << 30)
        self.linked = LinkedRanks(job, folder, RANKS, seed, PROGRAM)

    def start(self, rank: int, address: str, prefix: tuple[str, ...], **more: str) -> None:
        """Starts a rank of a host with EACH of them."""
        place = {
            "LOCAL_RANK": rank % EACH, "LOCAL_SIZE": EACH, "CROSS_RANK": rank // EACH,
            "CROSS_SIZE": HOSTS,
        }  # fmt: skip
        variables = {f"HOROACC_{name}": str(value) for name, value in place.items()}
        self.linked.start(rank, address, prefix, **(LIMITS | variables | more))

    def pid(self, rank: int) -> int:
        """The rank's process, as this one counts."""
        return self.linked.ranks[rank].process.pid

    def signal(self, number: int, *ranks: int) -> None:
        for rank in ranks:
            os.kill(self.pid(rank), number)

    def pause(self) -> None:
        """Stops a rank, or all of a host, for a while."""
        host = self.draw.randrange(HOSTS)
        ranks = [host * EACH + at for at in range(self.draw.choice([1, EACH]))]
        self.signal(signal.SIGSTOP, *ranks)
        time.sleep(self.draw.uniform(0.01, 1.0))
        self.signal(signal.SIGCONT, *ranks)

    def kill(self) -> set[int]:
        ranks = {self.draw.randrange(RANKS)}
        self.signal(signal.SIGKILL, *ranks)
        return ranks

    def stop(self) -> set[int]:
        ranks = {self.draw.randrange(RANKS)}
        self.signal(signal.SIGSTOP, *ranks)
        return ranks

    def disturbances(self) -> list[Callable[[], None]]:
        """Those after which the job goes on."""
        return [self.pause]

    def ends(self) -> list[tuple[str, Callable[[], set[int]]]]:
        """Those that end it, with their kind of bound; each gives the ranks that get no error."""
        return [("die", self.kill), ("hang", self.stop)]

    def run(self) -> None:
        """The job, from its start to its end."""
        linked = self.linked
        linked.wait_for(lambda: self.errors() or self.all_step(), "the start")
        self.expect_no_error()
        for _ in range(self.draw.randrange(5)):
            disturb = self.draw.choice(self.disturbances())
            disturb()
            self.told[disturb.__name__] += 1
            time.sleep(self.draw.uniform(0.0, 0.5))
            self.expect_no_error()
        if self.draw.random() < 0.1:
            self.told["an orderly end"] += 1
            linked.end()
            return
        kind, end = self.draw.choice(self.ends())
        began = time.monotonic()
        silent = end()
        self.told[end.__name__] += 1
        alive = [rank for rank in range(RANKS) if rank not in silent]
        linked.wait_for(
            lambda: all(linked.count(rank, "error") for rank in alive), end.__name__, 60.0
        )
        self.expect_right(kind, silent, linked.await_errors(*alive), began)
        for rank in silent:
            self.linked.ranks[rank].process.kill()
        linked.end(9, -signal.SIGKILL, 128 + signal.SIGKILL)

    def all_step(self) -> bool:
        return all(self.linked.step_of(rank) >= 0 for rank in range(RANKS))

    def errors(self) -> list[object]:
        return [
            (rank, said, one.err[-3:])
            for rank, one in self.linked.ranks.items()
            for said in one.said
            if "error" in said or "wrong" in said
        ]

    def expect_no_error(self) -> None:
        assert not self.errors(), self.errors()

    def expect_right(
        self, kind: str, silent: set[int], errors: dict[int, dict[str, object]], began: float
    ) -> None:
        """Every error is of the right type, names the culprit, and came in time."""
        for rank, said in errors.items():
            late = float(str(said["time"])) - began
            self.late[kind] = max(late, self.late.get(kind, 0.0))
            assert late < SECONDS[kind], (kind, rank, late, said)
            assert said["error"] in ("PeerLost", "Timeout"), (kind, rank, said)
            culprit = said["culprit"]
            if kind in ("die", "hang"):
                assert culprit in silent, (kind, rank, said)
            else:
                assert culprit is not None, (kind, rank, said)


class LabChaos(Chaos):
    """On hosts of the laboratory."""

    def __init__(self, draw: random.Random, folder: Path, job: Job, lab: Laboratory) -> None:
        super().__init__(draw, folder, job)
        self.lab = lab
        hosts = list(lab.hosts.values())
        for rank in range(RANKS):
            host = hosts[rank // EACH]
            prefix = tuple(host.command([]))
            address = f"{hosts[0].addresses[0]}:4711"
            self.start(rank, address, prefix, HOROACC_SIMULATED_HOSTS="")

    def pid(self, rank: int) -> int:
        entrance = super().pid(rank)
        (inside,) = Path(f"/proc/{entrance}/task/{entrance}/children").read_text().split()
        return int(inside)

    def signal(self, number: int, *ranks: int) -> None:
        super().signal(number, *ranks)
        if number == signal.SIGCONT:
            for rank in ranks:  # nsenter stops itself when its child is stopped
                self.linked.ranks[rank].process.send_signal(number)

    def disturbances(self) -> list[Callable[[], None]]:
        return [self.pause, self.unplug_for_a_while]

    def ends(self) -> list[tuple[str, Callable[[], set[int]]]]:
        return [*super().ends(), ("die", self.kill_a_host), ("vanish", self.unplug)]

    def unplug_for_a_while(self) -> None:
        host = f"h{1 + self.draw.randrange(HOSTS)}"
        self.lab.unplug(host)
        time.sleep(self.draw.uniform(0.01, 1.0))
        self.lab.plug(host)
        # TCP repeats ever more rarely what was lost: another outage before would make one silence.
        before = [self.linked.step_of(rank) for rank in range(RANKS)]
        self.linked.wait_for(
            lambda: self.errors() or all(self.linked.step_of(r) > n for r, n in enumerate(before)),
            "steps after an outage",
        )

    def kill_a_host(self) -> set[int]:
        host = self.draw.randrange(HOSTS)
        ranks = {host * EACH + at for at in range(EACH)}
        self.signal(signal.SIGKILL, *ranks)
        return ranks

    def unplug(self) -> set[int]:
        """The ranks of the host that is cut off have an error as well."""
        self._unplugged = f"h{1 + self.draw.randrange(HOSTS)}"
        self.lab.unplug(self._unplugged)
        return set()

    def close(self) -> None:
        for host in self.lab.hosts:
            self.lab.plug(host)


class ProxyChaos(Chaos):
    """On simulated hosts, with a proxy before each rank but rank 0."""

    def __init__(self, draw: random.Random, folder: Path, job: Job) -> None:
        super().__init__(draw, folder, job)
        self.passages = [Passage(self.linked.port, self.linked.secret) for _ in range(1, RANKS)]
        hosts = "+".join([str(EACH)] * HOSTS)
        for rank in range(RANKS):
            address = f"127.0.0.1:{self.passages[rank - 1].port}" if rank else ""
            self.start(rank, address, (), HOROACC_SIMULATED_HOSTS=hosts)

    def disturbances(self) -> list[Callable[[], None]]:
        return [self.pause, self.delay, self.stall]

    def ends(self) -> list[tuple[str, Callable[[], set[int]]]]:
        return [*super().ends(), ("lose", self.reset), ("lose", self.damage)]

    def _befall(self, fault: Fault) -> None:
        for gate in self.draw.choice(self.passages).gates:
            gate.fault = fault

    def _for_a_while(self, fault: Fault) -> None:
        self._befall(fault)
        time.sleep(self.draw.uniform(0.01, 1.0))
        for passage in self.passages:
            for gate in passage.gates:
                gate.fault = Fault()

    def delay(self) -> None:
        self._for_a_while(Fault(delay=0.02, jitter=0.02))

    def stall(self) -> None:
        ways = [("to",), ("from",), ("to", "from")]
        self._for_a_while(Fault(stalled=self.draw.choice(ways)))

    def reset(self) -> set[int]:
        links = [
            (gate, at)
            for passage in self.passages
            for gate in passage.gates
            for at in range(len(gate.links))
        ]
        gate, at = self.draw.choice(links)
        gate.reset(at)
        return set()

    def damage(self) -> set[int]:
        """One byte of the next frame, anywhere before one rank."""
        self._befall(Fault(flip=(self.draw.choice(["to", "from"]), self.draw.randrange(1, 32))))
        return set()

    def close(self) -> None:
        for passage in self.passages:
            passage.close()


@contextlib.contextmanager
def job_of(draw: random.Random, lab: Laboratory | None) -> Iterator[Chaos]:
    with tempfile.TemporaryDirectory() as folder, Job() as job:
        made = (
            LabChaos(draw, Path(folder), job, lab) if lab else ProxyChaos(draw, Path(folder), job)
        )
        try:
            yield made
        finally:
            made.linked.kill()
            made.close()


def main() -> int:
    """Gives 1 if anything was not as it has to be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    told: Counter[str] = Counter()
    late: dict[str, float] = {}
    failed = jobs = 0
    end = time.monotonic() + options.seconds
    with Laboratory(Network(hosts=HOSTS)) as lab:
        while time.monotonic() < end:
            draw = random.Random(f"{options.seed} {jobs}")
            try:
                with job_of(draw, lab if jobs % 2 else None) as chaos:
                    try:
                        chaos.run()
                    finally:
                        told += chaos.told
                        late |= {
                            kind: max(s, late.get(kind, 0.0)) for kind, s in chaos.late.items()
                        }
            except (AssertionError, OSError, subprocess.TimeoutExpired) as error:
                failed += 1
                print(f"job {jobs}: {error!r}, after {error.__context__!r}", flush=True)
            jobs += 1
    faults = ", ".join(f"{name} {count}" for name, count in told.most_common())
    last = ", ".join(f"{kind} {seconds:.2f} s" for kind, seconds in sorted(late.items()))
    print(f"{jobs} jobs, {failed} failed; {faults}; the latest errors: {last}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
