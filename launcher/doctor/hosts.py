"""The hosts of `horoaccrun doctor`: starts its probe on each and asks it, never without a deadline.

Another host is reached as by mpirun: through the launch agent, or by ssh with mpirun's options.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from horoacc.launcher.doctor.probe import MARK
from horoacc.launcher.hosts import is_this_host
from horoacc.launcher.processes import die_with_parent

_PROBE = Path(__file__).resolve().parent / "probe.py"
_READ = "import sys; exec(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))"
_OLDEST = "import sys; sys.exit(sys.version_info < (3, 7))"
# The shell of the other host: the ranks' interpreter, else any that can run the probe.
_START = (
    'for python in {python} python3; do "$python" -c {oldest} 2>/dev/null'
    ' && exec "$python" -I -S -c {read}; done; echo {none}'
)
_NO_PYTHON = MARK + "no python"
_CLOCK_READINGS = 7
# What ssh says, and what to do about it.
_SSH_ADVICE = (
    ("Permission denied", "let ssh in without a password: ssh-copy-id {host}, or an agent's key"),
    ("Host key verification failed", "log in once by hand (ssh {host}), or add it to known_hosts"),
    ("Could not resolve hostname", "add {host} to DNS or to /etc/hosts, or correct its name in -H"),
    ("Name or service not known", "add {host} to DNS or to /etc/hosts, or correct its name in -H"),
    ("Connection refused", "start sshd on {host}, or name another way with --launch-agent"),
    ("timed out", "see whether {host} runs and whether a firewall drops ssh's port"),
    ("No route to host", "see whether {host} runs and is on a network that this host reaches"),
    ("Network is unreachable", "this host has no route to {host}: see `ip route`"),
)

Answer = TypeVar("Answer")


class Unreached(RuntimeError):
    """A host gave no answer; the text says why, and `advice` what to do."""

    def __init__(self, text: str, advice: str) -> None:
        super().__init__(text)
        self.advice = advice


@dataclass
class Seen:
    """A host and what is known of it."""

    name: str
    ranks: int
    here: bool
    facts: dict[str, Any] = field(default_factory=dict)
    rank: dict[str, Any] = field(default_factory=dict)
    """What the ranks' interpreter finds there."""
    met: dict[str, Any] = field(default_factory=dict)
    """Names and connections, by the other host's name."""
    clock: tuple[float, float] = (0.0, 0.0)
    """Seconds that its clock is ahead of this host's, and how far that may be wrong."""
    ports: list[int] = field(default_factory=list)
    started: float = 0.0
    """Seconds until it first answered."""
    unreached: Unreached | None = None


class Probe:
    """The probe on one host."""

    def __init__(self, host: Seen, command: Sequence[str], order: Mapping[str, Any]) -> None:
        """Starts it. The thread that does so has to outlive it: the probe dies with its parent.

        Args:
            host: Where it runs.
            command: How it is started there.
            order: Its first line: `host`, `token` and `life`.

        Raises:
            Unreached: The command cannot be started.
        """
        self._host = host
        self._replies: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}
        self._numbers = itertools.count()
        self._missing_python = False
        self._ended = threading.Event()
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                start_new_session=True, preexec_fn=die_with_parent(signal.SIGTERM),
            )  # fmt: skip
        except OSError as error:
            raise Unreached(
                f"cannot start {command[0]}: {error.strerror}",
                "install it, or name the program that starts commands there with --launch-agent",
            ) from None
        self._said: list[str] = []
        self._outgoing: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        source = _PROBE.read_bytes()
        self._send(f"{len(source)}\n".encode() + source + json.dumps(order).encode() + b"\n")
        self._errors = threading.Thread(target=self._read_errors, daemon=True)
        self._errors.start()
        for work in (self._read, self._write):
            threading.Thread(target=work, daemon=True).start()

    def ask(self, what: str, seconds: float, /, **arguments: Any) -> Any:
        """The answer to a question.

        Raises:
            Unreached: There is none within that time, or the question could not be answered.
        """
        number = next(self._numbers)
        self._replies[number] = queue.SimpleQueue()
        self._send(json.dumps({"id": number, "ask": what, **arguments}).encode() + b"\n")
        deadline = time.monotonic() + seconds
        while True:
            # Short, because the end of the process is told by no queue.
            try:
                reply = self._replies[number].get(timeout=0.05)
                break
            except queue.Empty:
                if self._ended.is_set() and self._replies[number].empty():
                    raise self._why_it_ended() from None
                if time.monotonic() > deadline:
                    raise Unreached(
                        f"no answer to '{what}' within {seconds:g} s",
                        f"see whether {self._host.name} runs, and whether its load or a firewall "
                        "keeps it from answering; --seconds gives it more time",
                    ) from None
        if "error" in reply:
            raise Unreached(f"'{what}' failed: {reply['error']}", "this should be reported")
        return reply["answer"]

    def close(self) -> None:
        """Ends the probe, whatever it does, and what has started it."""
        self._send(b"")
        try:
            self._process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _send(self, data: bytes) -> None:
        """Has data written; b"" closes the pipe, which ends the probe."""
        self._outgoing.put(data)

    def _write(self) -> None:
        """A thread of its own: a host that reads nothing must not hold up whoever asks it."""
        assert self._process.stdin
        with contextlib.suppress(OSError):  # it has ended: the reader tells why
            while data := self._outgoing.get():
                self._process.stdin.write(data)
                self._process.stdin.flush()
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            text = line.decode(errors="replace").strip()
            if text == _NO_PYTHON:
                self._missing_python = True
            elif text.startswith(MARK):
                reply = json.loads(text[len(MARK) :])
                self._replies[reply["id"]].put(reply)
        self._process.wait()
        self._errors.join(timeout=1)  # something else may hold that pipe open
        self._ended.set()

    def _read_errors(self) -> None:
        assert self._process.stderr
        for line in self._process.stderr:
            if text := line.decode(errors="replace").strip():
                self._said = [*self._said[-9:], text]

    def _why_it_ended(self) -> Unreached:
        name = self._host.name
        if self._missing_python:
            return Unreached(
                f"no Python there: neither {sys.executable} nor a python3 of 3.7 or newer starts",
                f"install Python and HoroACC on {name} at the same path, or share that folder",
            )
        said = "; ".join(self._said[-2:])
        for words, advice in _SSH_ADVICE:
            if words in said:
                return Unreached(said, advice.format(host=name))
        code = self._process.returncode
        return Unreached(
            said or f"the connection ended with code {code} and no message",
            f"try the same by hand: {shlex.join(_words(self._process.args)[:4])} …",
        )


def _words(command: Any) -> list[str]:
    return [str(word) for word in command]


def which_are_here(names: Sequence[str], seconds: float) -> set[str]:
    """The names of this machine; one whose resolver does not answer in time is another's."""
    found: set[str] = set()

    def ask(name: str) -> None:
        if is_this_host(name):
            found.add(name)

    askers = [threading.Thread(target=ask, args=(name,), daemon=True) for name in names]
    deadline = time.monotonic() + seconds
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join(max(0.0, deadline - time.monotonic()))
    return set(found)


def command_for(host: Seen, agent: str, mpi_args: str, seconds: float) -> list[str]:
    """The command that starts the probe on a host; ssh never asks for a password."""
    if host.here:
        return [sys.executable, "-I", "-S", "-c", _READ]
    start = _START.format(
        python=shlex.quote(sys.executable),
        oldest=shlex.quote(_OLDEST),
        read=shlex.quote(_READ),
        none=shlex.quote(_NO_PYTHON),
    )
    reach = shlex.split(agent) or ["ssh"]
    if Path(reach[0]).name == "ssh":
        wait = max(1, round(seconds))
        given = re.findall(r"(?:plm_ssh_args|plm_rsh_args)\s+(\"[^\"]*\"|'[^']*'|\S+)", mpi_args)
        reach += ["-x", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={wait}"]
        reach += [word for text in given for word in shlex.split(text.strip("\"'"))]
    # One word, for ssh's far end joins words and lets the user's shell read them.
    return [*reach, host.name, f"exec sh -c {shlex.quote(start)}"]


def agent_name(agent: str) -> str:
    """How other hosts are reached, in a word."""
    return Path((shlex.split(agent) or ["ssh"])[0]).name


def on_all(hosts: Sequence[Seen], work: Callable[[Seen], None]) -> None:
    """Calls `work` for every host that was reached, at once; a host for which it raises Unreached
    counts as not reached from then on.
    """

    def guarded(host: Seen) -> None:
        try:
            work(host)
        except Unreached as error:
            host.unreached = error

    reached = [host for host in hosts if host.unreached is None]
    with ThreadPoolExecutor(max_workers=max(1, len(reached))) as threads:
        for _ in threads.map(guarded, reached):
            pass


def read_clock(probe: Probe, seconds: float) -> tuple[float, float]:
    """How many seconds a host's clock is ahead of this one, and how far that may be wrong."""
    readings = []
    for _ in range(_CLOCK_READINGS):
        before = time.time()
        there = float(probe.ask("clock", seconds))
        after = time.time()
        readings.append(((after - before) / 2, there - (before + after) / 2))
    doubt, ahead = min(readings)
    return ahead, doubt
