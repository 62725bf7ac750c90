"""A Slurm cluster in a network laboratory: h1 has slurmctld, h2 and those after it a slurmd each.

All its files are in one folder, which each host sees as /run; all its processes end with the
laboratory, since they are in its process namespace.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.lab import Laboratory, Network

Done = subprocess.CompletedProcess[str]
ROOT = Path(__file__).resolve().parents[3]
CORES = 2
DETECTION_SECONDS = 5
"""After so long without a slurmd's answer Slurm takes a node for dead (SlurmdTimeout)."""
_CONFIGURATION = """\
ClusterName=laboratory
SlurmctldHost=h1
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# What a requeued job waits for before it starts again is a second more than cred_expire.
AuthInfo=cred_expire=5
CryptoType=crypto/munge
StateSaveLocation=/run/state
SlurmdSpoolDir=/run/spool.%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
InactiveLimit=0
KillWait=2
MinJobAge=60
SlurmdTimeout={detection}
TmpFS=/run/tmp.%n
MpiDefault=none
NodeName={nodes} CPUs={cores} CoresPerSocket={cores} State=UNKNOWN
PartitionName=lab Nodes={nodes} Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """A cluster whose daemons run."""

    def __init__(self, lab: Laboratory, folder: Path) -> None:
        self.lab = lab
        self.folder = folder
        self.nodes = [name for name in lab.hosts if name != "h1"]

    def start(self) -> None:
        """Starts all daemons, and waits until all nodes are idle."""
        own = [f"{kind}.{node}" for kind in ("spool", "tmp") for node in self.nodes]
        self.folder.chmod(0o755)
        for name in ("munge", "state", "log", *own):
            (self.folder / name).mkdir(mode=0o755)
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        nodes = ",".join(self.nodes)
        configuration = _CONFIGURATION.format(nodes=nodes, cores=CORES, detection=DETECTION_SECONDS)
        (self.folder / "slurm.conf").write_text(configuration)
        for host in self.lab.hosts.values():
            host.run(["mount", "--bind", str(self.folder), "/run"])
        self._daemon("h1", "munged", "--foreground", "--force", "--key-file=/run/munge.key",
            "--log-file=/run/log/munged", "--pid-file=/run/munged.pid", "--seed-file=/run/seed",
            "--socket=/run/munge/munge.socket.2")  # fmt: skip
        self.wait_until(lambda: (self.folder / "munge/munge.socket.2").exists(), "munged")
        self._daemon("h1", "slurmctld", "-D", "-f", "/run/slurm.conf")
        for node in self.nodes:
            self.start_node(node)
        self.wait_until(lambda: self.states() == dict.fromkeys(self.nodes, "idle"), "the nodes")

    def start_node(self, node: str) -> None:
        """Starts the slurmd of a node."""
        self._daemon(node, "slurmd", "-D", "-f", "/run/slurm.conf", "-N", node)

    def end_node(self, node: str) -> None:
        """Kills the slurmd of a node, and nothing else."""
        for pid in self._processes(node):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text().strip() == "slurmd":
                    os.kill(pid, signal.SIGKILL)

    def lose(self, node: str) -> None:
        """Kills all processes of a node."""
        for pid in self._processes(node):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _processes(self, node: str) -> list[int]:
        holder = self.lab.hosts[node].pid
        own, found = os.readlink(f"/proc/{holder}/ns/net"), []
        for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
            with contextlib.suppress(OSError):
                if pid != holder and os.readlink(f"/proc/{pid}/ns/net") == own:
                    found.append(pid)
        return found

    def states(self) -> dict[str, str]:
        """The state of each node, as `sinfo` tells it."""
        done = self.run("sinfo", "-h", "-N", "-o", "%N %T", code=None)
        return dict(line.split() for line in done.stdout.splitlines())

    def run(
        self, *command: str, on: str = "h1", code: int | None = 0, stdin: str = "", **more: str
    ) -> Done:
        """Runs a command on the host where users log in, or another.

        Args:
            command: The command.
            on: The host.
            code: The exit code that must come; None: any.
            stdin: What it reads.
            more: Variables.
        """
        done = self.lab.hosts[on].run(
            command, env=self.environ(more), input=stdin, capture_output=True, text=True,
            timeout=100, check=False,
        )  # fmt: skip
        assert code is None or done.returncode == code, done
        return done

    def popen(self, *command: str, on: str = "h1", **keywords: Any) -> subprocess.Popen[str]:
        """Starts a command there."""
        environ = self.environ(keywords.pop("env", {}))
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return self.lab.hosts[on].popen(command, env=environ, **(pipes | keywords))

    def submit(self, script: str, *flags: str, **more: str) -> str:
        """Submits a batch script; the number of its job."""
        to = ("--parsable", "-o", f"{self.folder}/log/%j")
        text = f"#!/bin/sh\n{script}\n"
        return self.run("sbatch", *to, *flags, stdin=text, **more).stdout.strip()

    def end_jobs(self) -> None:
        """Ends all jobs that are left, and waits for idle nodes."""
        for number in self.run("squeue", "-h", "-o", "%A").stdout.split():
            self.run("scancel", number, code=None)
        self.wait_until(lambda: set(self.states().values()) == {"idle"}, "idle nodes", 60)

    def state(self, number: str) -> str:
        """The state of a job, as `squeue` tells it."""
        return self.run("squeue", "-h", "-t", "all", "-j", number, "-o", "%T").stdout.strip()

    def output(self, number: str, seconds: float = 60.0) -> str:
        """What a batch job has printed, once it has ended well."""
        path = self.folder / "log" / number
        over = ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT")
        self.wait_until(lambda: self.state(number) in over, f"the end of job {number}", seconds)
        assert self.state(number) == "COMPLETED", path.read_text()
        return path.read_text()

    def environ(self, more: Mapping[str, str]) -> dict[str, str]:
        """The variables of a user."""
        other = ("HOROACC_", "HOROVOD_", "SLURM_", "OMP_NUM", "PYTHONPATH")
        kept = {name: text for name, text in os.environ.items() if not name.startswith(other)}
        path = f"{Path(sys.executable).parent}:{kept['PATH']}:/usr/sbin"
        own = {"SLURM_CONF": "/run/slurm.conf", "PATH": path}
        return kept | own | {name: text for name, text in more.items() if name not in own}

    def wait_until(self, true: Any, what: str, seconds: float = 30.0) -> None:
        """Waits for something."""
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, f"{what}: not in {seconds:g} s"
            time.sleep(0.05)

    def _daemon(self, host: str, *command: str) -> subprocess.Popen[Any]:
        log = (self.folder / "log" / f"{host}.{command[0]}").open("ab")
        with log:
            return self.lab.hosts[host].popen(
                command, env=self.environ({}), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )


@contextlib.contextmanager
def cluster(folder: Path, nodes: int) -> Iterator[Slurm]:
    """A cluster, while the context lasts."""
    with Laboratory(Network(hosts=nodes + 1)) as lab:
        slurm = Slurm(lab, folder)
        slurm.start()
        yield slurm
