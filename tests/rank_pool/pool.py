"""Ranks that are started once and run many test bodies.

A pool is a job of `size` worker processes (worker.py). They are forked from a process that has
imported the framework (fork_server.py), connect over TCP on the loopback device, and then wait for
bodies: functions of test modules, which every rank runs. A body that raises on any rank, or misses
its deadline, ends the pool; the next body gets a new one. With HOROACC_TEST_MPIRUN among its
variables the pool is started by that mpirun instead: it starts relays (relay.py), for which the
ranks are forked, and the ranks find each other through it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path
from typing import Any

from fork_server_process import START_SECONDS, BodyFailed, ForkServer, variables

RELAY = Path(__file__).with_name("relay.py")
# After one rank failed the others may wait for it for ever.
GRACE_SECONDS = 3.0
STACK_SECONDS = 2.0
# By what `mpirun --version` says: flags that the pool needs, and the library in lib/ beside bin/.
MPIS = {
    "Open MPI": (["--oversubscribe", "--allow-run-as-root", "--bind-to", "none"], "libmpi.so.40"),
    "HYDRA": ([], "libmpi.so.12"),
}
# Variables that decide what is imported before ranks are forked, and how: HOROACC_TEST_IMPORTS
# names, separated by commas, what all ranks would import themselves.
AT_IMPORT = ("KERAS_BACKEND", "HOROACC_TEST_IMPORTS", "PYTHONPATH")


@dataclass
class Outcome:
    """What a body did on one rank."""

    rank: int
    kind: str
    """`ok`, `skipped`, `failed`, `hung` or `died`."""
    value: Any = None
    """What the body returned, or why it was skipped."""
    text: str = ""
    """The traceback, the stacks of all threads, or the last lines on stderr."""


class BodySkipped(Exception):
    """A body asked to be skipped on every rank."""


class RankPool:
    """A job of worker processes."""

    def __init__(
        self, size: int, framework: str, env: Mapping[str, str], fork_server: ForkServer
    ) -> None:
        self.size = size
        self.broken = False
        self._folder = tempfile.mkdtemp(prefix="horoacc-ranks-")
        self._links: list[Connection] = []
        self._mpirun: subprocess.Popen[bytes] | None = None
        # By rank. A descriptor, because a number may be another process's by the time of a signal.
        self._processes: list[int] = []
        try:
            self._start(framework, variables() | dict(env), fork_server)
        except BaseException:
            self.kill()
            raise

    def _start(self, framework: str, variables: dict[str, str], fork_server: ForkServer) -> None:
        key = secrets.token_bytes(16)
        variables["HOROACC_TEST_KEY"] = key.hex()
        address = os.path.join(self._folder, "pool")
        arguments = [address, framework, self._folder]
        # stdlib's Listener authenticates whoever connects with the key.
        with Listener(address, "AF_UNIX", backlog=self.size, authkey=key) as listener:
            if "HOROACC_TEST_MPIRUN" in variables:
                relays = os.path.join(self._folder, "relays")
                fork_server.await_relays(relays, arguments)
                self._start_mpirun(variables, relays)
            else:
                pids = fork_server.fork(self.size, variables, arguments)
                self._processes = [os.pidfd_open(pid) for pid in pids]
            self._accept(listener)

    def _start_mpirun(self, variables: dict[str, str], relays: str) -> None:
        mpirun = Path(variables["HOROACC_TEST_MPIRUN"])
        version = subprocess.run(
            [mpirun, "--version"], capture_output=True, text=True, timeout=300, check=True
        )
        (mpi,) = [name for name in MPIS if name in version.stdout]
        flags, library = MPIS[mpi]
        # A rank's ancestors do not tell which MPI it is to use: mpirun is none of them.
        variables["HOROACC_MPI_LIBRARY"] = str(mpirun.parents[1] / "lib" / library)
        command = [sys.executable, "-I", "-S", str(RELAY), relays]
        with open(os.path.join(self._folder, "stderr.mpirun"), "wb") as stderr:
            self._mpirun = subprocess.Popen(
                [mpirun, "-np", str(self.size), *flags, *command], env=variables,
                stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr,
            )  # fmt: skip

    def _died(self) -> bool:
        """Whether a process of the job has ended."""
        if self._mpirun is not None:
            return self._mpirun.poll() is not None
        return bool(select.select(self._processes, [], [], 0)[0])

    def _accept(self, listener: Listener) -> None:
        deadline = time.monotonic() + START_SECONDS
        # Listener has no time limit of its own; the socket below it has.
        listener._listener._socket.settimeout(1.0)  # type: ignore[attr-defined]
        while len(self._links) < self.size:
            try:
                self._links.append(listener.accept())
                continue
            except (TimeoutError, OSError):
                pass
            if self._died():
                raise BodyFailed(f"a rank died while it started\n{self._logs()}")
            if time.monotonic() > deadline:
                raise BodyFailed(f"the ranks did not start in {START_SECONDS:g} s\n{self._logs()}")
        hellos: list[tuple[int, int, Connection]] = []
        for link in self._links:
            if not link.poll(max(0.1, deadline - time.monotonic())):
                raise BodyFailed(f"init() took more than {START_SECONDS:g} s\n{self._logs()}")
            try:
                rank, pid, error = link.recv()
            except EOFError:
                raise BodyFailed(f"a rank died in init()\n{self._logs()}") from None
            if error:
                raise BodyFailed(f"init() failed on rank {rank}\n{error}")
            hellos.append((rank, pid, link))
        hellos.sort(key=lambda hello: hello[0])
        self._links = [link for _, _, link in hellos]
        if self._mpirun is not None:
            self._processes = [os.pidfd_open(pid) for _, pid, _ in hellos]

    def run(self, path: Path, name: str, arguments: dict[str, Any], seconds: float) -> list[Any]:
        """Runs a body on every rank.

        Args:
            path: The test module.
            name: The function's qualified name in it.
            arguments: Its arguments; they are pickled.
            seconds: How long it may take.

        Returns:
            What it returned, by rank.

        Raises:
            BodyFailed: It raised, hung or died on some rank; the text has every rank's story.
            BodySkipped: It was skipped on every rank.
        """
        for link in self._links:
            link.send((str(path), name, pickle.dumps(arguments)))
        outcomes: dict[int, Outcome] = {}
        deadline = time.monotonic() + seconds
        while len(outcomes) < self.size:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            ready = wait([self._links[r] for r in range(self.size) if r not in outcomes], left)
            for rank in range(self.size):
                if self._links[rank] in ready and rank not in outcomes:
                    outcomes[rank] = self._receive(rank)
                    if outcomes[rank].kind in ("failed", "died"):
                        deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        for rank in set(range(self.size)) - set(outcomes):
            outcomes[rank] = Outcome(rank, "hung", text=self._stacks(rank))
        return self._judge([outcomes[rank] for rank in range(self.size)], seconds)

    def _receive(self, rank: int) -> Outcome:
        try:
            kind, value, text = self._links[rank].recv()
        except (EOFError, OSError):
            return Outcome(rank, "died", text=self._log(f"stderr.{rank}"))
        return Outcome(rank, kind, value, text)

    def _judge(self, outcomes: list[Outcome], seconds: float) -> list[Any]:
        kinds = {outcome.kind for outcome in outcomes}
        if kinds == {"ok"}:
            return [outcome.value for outcome in outcomes]
        if kinds == {"skipped"}:
            raise BodySkipped(outcomes[0].value)
        self.broken = True
        self.kill()
        first = [o for o in outcomes if o.kind in ("failed", "died")]
        story = [f"{len(first) or 'no'} of {self.size} ranks failed"]
        for outcome in [*first, *(o for o in outcomes if o.kind == "hung")]:
            what = f"hung for {seconds:g} s" if outcome.kind == "hung" else outcome.kind
            story.append(f"--- rank {outcome.rank} {what}\n{outcome.text.rstrip()}")
        if "skipped" in kinds:
            story.append("some ranks skipped the body and others did not")
        raise BodyFailed("\n".join(story))

    def _stacks(self, rank: int) -> str:
        """Has faulthandler write the stacks of a rank's threads."""
        path = os.path.join(self._folder, f"stacks.{rank}")
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self._processes[rank], signal.SIGUSR1)
        end = time.monotonic() + STACK_SECONDS
        before = -1
        while time.monotonic() < end:
            size = os.path.getsize(path) if os.path.exists(path) else 0
            if size and size == before:
                break
            before = size
            time.sleep(0.1)
        return self._log(f"stacks.{rank}", 4000) + self._log(f"stderr.{rank}")

    def _log(self, name: str, length: int = 2000) -> str:
        try:
            return Path(self._folder, name).read_text(errors="replace")[-length:]
        except OSError:
            return ""

    def _logs(self) -> str:
        names = sorted(path.name for path in Path(self._folder).glob("stderr.*"))
        return "\n".join(f"--- {name}\n{self._log(name)}" for name in names)

    def stop(self) -> None:
        """Lets the ranks shut down; kills those that do not."""
        for link in self._links:
            with contextlib.suppress(OSError):
                link.send(None)
        left = list(self._processes)
        end = time.monotonic() + 10
        while left and (seconds := end - time.monotonic()) > 0:
            ended = select.select(left, [], [], seconds)[0]
            left = [process for process in left if process not in ended]
        self.kill()

    def kill(self) -> None:
        """Kills the ranks, which descend from this process."""
        for process in self._processes:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(process, signal.SIGKILL)
            os.close(process)
        self._processes = []
        if self._mpirun is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._mpirun.wait(5)
            self._mpirun.kill()
            self._mpirun.wait()
        for link in self._links:
            link.close()
        self._links = []
        shutil.rmtree(self._folder, ignore_errors=True)


class Pools:
    """The pools of a test session. The least recently used go when there are too many ranks."""

    def __init__(self, most_ranks: int = 40) -> None:
        self._most_ranks = most_ranks
        self._pools: dict[tuple[Any, ...], RankPool] = {}
        self._fork_servers: dict[tuple[Any, ...], ForkServer] = {}

    def get(self, size: int, framework: str, env: Mapping[str, str]) -> RankPool:
        """Gives a working pool, starting it if need be."""
        key = (size, framework, *sorted(env.items()))
        pool = self._pools.pop(key, None)
        if pool is not None and pool.broken:
            pool = None
        while self._pools and size + sum(p.size for p in self._pools.values()) > self._most_ranks:
            self._pools.pop(next(iter(self._pools))).stop()
        self._pools[key] = pool = pool or self._new(size, framework, env)
        return pool

    def _new(self, size: int, framework: str, env: Mapping[str, str]) -> RankPool:
        chosen = {name: value for name, value in env.items() if name in AT_IMPORT}
        key = (framework, *sorted(chosen.items()))
        if key not in self._fork_servers:
            self._fork_servers[key] = ForkServer(framework, chosen=chosen)
        return RankPool(size, framework, env, self._fork_servers[key])

    def close(self) -> None:
        """Stops all pools."""
        while self._pools:
            self._pools.popitem()[1].stop()
        while self._fork_servers:
            self._fork_servers.popitem()[1].close()
