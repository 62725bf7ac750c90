"""Programs that this one starts on other hosts and asks, never without a deadline.

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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from horoacc.launcher.doctor.probe import MARK
from horoacc.launcher.processes import die_with_parent

__all__ = ["NO_PYTHON", "RemoteProgram", "Unreached", "agent_name", "command_on"]

NO_PYTHON = MARK + "no python"
"""A line by which a host says that it has none."""

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


class Unreached(RuntimeError):
    """A host gave no answer; the text says why, and `advice` what to do."""

    def __init__(self, text: str, advice: str) -> None:
        super().__init__(text)
        self.advice = advice


class RemoteProgram:
    """A program on one host that answers questions.

    Each is a line of JSON with `ask`, `id` and arguments, and the answer a line that begins with
    MARK, so that a login shell's greeting is no answer.
    """

    def __init__(self, host: str, command: Sequence[str], first: bytes = b"") -> None:
        """Starts it. The thread that does so has to outlive it: the program dies with its parent.

        Args:
            host: Where it runs.
            command: How it is started there.
            first: What it reads before the first question.

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
        if first:
            self._send(first)
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
        replies = self._replies[number] = queue.SimpleQueue()
        self._send(json.dumps({"id": number, "ask": what, **arguments}).encode() + b"\n")
        deadline = time.monotonic() + seconds
        while True:
            # Short, because the end of the process is told by no queue.
            try:
                reply = replies.get(timeout=0.05)
                break
            except queue.Empty:
                if self._ended.is_set() and replies.empty():
                    raise self._why_it_ended() from None
                if time.monotonic() > deadline:
                    del self._replies[number]
                    raise Unreached(
                        f"no answer to '{what}' within {seconds:g} s",
                        f"see whether {self._host} runs, and whether its load or a firewall "
                        "keeps it from answering; --seconds gives it more time",
                    ) from None
        del self._replies[number]
        if "error" in reply:
            raise Unreached(f"'{what}' failed: {reply['error']}", "this should be reported")
        return reply["answer"]

    def close(self) -> None:
        """Ends the program, whatever it does, and what has started it."""
        self._send(b"")
        try:
            self._process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _send(self, data: bytes) -> None:
        """Has data written; b"" closes the pipe, which ends the program."""
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
            if text == NO_PYTHON:
                self._missing_python = True
            elif text.startswith(MARK):
                # A damaged answer is as none, and so is one to a question that was given up.
                with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
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
        name = self._host
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


def command_on(host: str, agent: str, mpi_args: str, seconds: float, line: str) -> list[str]:
    """The command that has sh on another host read a line; ssh never asks for a password.

    Args:
        host: Its name.
        agent: The launch agent; "": ssh.
        mpi_args: Flags of mpirun, which may hold some of ssh's.
        seconds: How long ssh may take to connect.
        line: For sh.

    Raises:
        Unreached: The name would be a flag of the launch agent.
    """
    if host.startswith("-"):
        raise Unreached(f"'{host}' is no name of a host", "correct its name in -H")
    reach = shlex.split(agent) or ["ssh"]
    if Path(reach[0]).name == "ssh":
        wait = max(1, round(seconds))
        given = re.findall(r"(?:plm_ssh_args|plm_rsh_args)\s+(\"[^\"]*\"|'[^']*'|\S+)", mpi_args)
        reach += ["-x", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={wait}"]
        reach += [word for text in given for word in shlex.split(text.strip("\"'"))]
    # One word, for ssh's far end joins words and lets the user's shell read them.
    return [*reach, host, f"exec sh -c {shlex.quote(line)}"]


def agent_name(agent: str) -> str:
    """How other hosts are reached, in a word."""
    return Path((shlex.split(agent) or ["ssh"])[0]).name
