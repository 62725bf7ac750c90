"""Hosts of the laboratory that lack something, and what `horoaccrun doctor` says of them.

Each fault is real on its host: a mount, a limit, a lost packet, a file of another version.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from launcher_jobs import ROOT

from horoacc.launcher.doctor.findings import Finding

sys.path.insert(0, str(ROOT))
from benchmarks.lab import Laboratory, Network, missing

__all__ = ["BIN", "CLOCK", "DRIVER", "SECCOMP", "Examined", "Laboratory", "Network", "dropped",
           "examine", "missing"]  # fmt: skip
BIN = Path(sys.executable).parent
_ENTER = ROOT / "benchmarks" / "lab" / "enter"
# An agent that runs a command in a host's own mounts and host name, where a fault is.
_AGENT = f"""#!/bin/sh
case $1 in
{{cases}}
esac
exec {_ENTER} "$@"
"""
_CASE = "{name}) command={folder}/command.$$; shift; printf '%s' \"$*\" > $command; {line};;"
_INSIDE = f"exec {_ENTER} {{at}} unshare --mount --uts sh {{folder}}/fault.{{name}} $command"
CLOCK = """
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
extern "C" int clock_gettime(clockid_t clock, timespec* time) {
  const long result = syscall(SYS_clock_gettime, clock, time);
  if (clock == CLOCK_REALTIME) time->tv_sec += 30;
  return static_cast<int>(result);
}
"""
# One GPU that no plug-in can use, for want of all other calls.
DRIVER = """
#include <cstring>
extern "C" {
int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* v) { *v = 13010; return 0; }
int cuDeviceGetCount(int* n) { *n = 1; return 0; }
int cuDeviceGetName(char* name, int, int) { std::strcpy(name, "Paper GPU"); return 0; }
}
"""
# pidfd_open (434) gives EPERM, as under an old container runtime.
SECCOMP = """
import ctypes, os, struct, sys
rules = [(0x20, 0, 0, 0), (0x15, 0, 1, 434), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7fff0000)]
text = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
program = struct.pack("HP", len(rules), ctypes.addressof(text))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0
os.execvp(sys.argv[1], sys.argv[1:])
"""


@dataclasses.dataclass
class Examined:
    """What the doctor said, and how long it took."""

    code: int
    findings: list[Finding]
    seconds: float

    def of(self, check: str, host: str) -> list[Finding]:
        return [found for found in self.findings if (found.check, found.host) == (check, host)]

    def expect(self, check: str, host: str, level: str, value: str, advice: str) -> None:
        """A finding whose value and advice have these patterns."""
        found = self.of(check, host)
        assert any(
            one.level == level and re.search(value, one.value) and re.search(advice, one.advice)
            for one in found
        ), found


def examine(
    lab: Laboratory, folder: Path, faults: dict[str, str], *flags: str, seconds: float = 6,
    places: dict[str, str] | None = None, **more: str,
) -> Examined:  # fmt: skip
    """Runs the doctor on h1.

    Args:
        lab: The hosts.
        folder: For the agent and the faults.
        faults: By the name of a host, lines of a shell that go before its command; if they begin
            with "exec ", the agent executes them instead of entering the host.
        flags: Of the doctor.
        seconds: Its limit for one question.
        places: Hosts of the laboratory by other names.
        more: Variables.
    """
    cases = []
    for name, lines in faults.items():
        (folder / f"fault.{name}").write_text(f'set -e\n{lines}\nexec $WRAP /bin/sh "$@"\n')
        at = (places or {}).get(name, name)
        line = lines if lines.startswith("exec ") else _INSIDE
        line = line.format(at=at, folder=folder, name=name)
        cases.append(_CASE.format(name=name, folder=folder, line=line))
    agent = folder / "agent"
    agent.write_text(_AGENT.format(cases="\n".join(cases)))
    agent.chmod(0o755)
    kept = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(("HOROACC_", "HOROVOD_", "PYTHONPATH", "LD_LIBRARY_PATH"))
    }
    own = {"HOROACC_LAUNCH_AGENT": str(agent)} | more
    variables = [f"{name}={text}" for name, text in own.items()]
    command = ["env", *variables, sys.executable, "-m", "horoacc.launcher.main", "doctor"]
    command += ["--json", "--seconds", str(seconds), *flags]
    if "h1" in faults:
        line = ["-c", 'exec "$@"', "sh"]
        command = ["unshare", "--mount", "--uts", "sh", str(folder / "fault.h1"), *line, *command]
    began = time.monotonic()
    done = lab.hosts["h1"].run(
        command, env=kept, capture_output=True, text=True, check=False, timeout=300
    )
    took = time.monotonic() - began
    assert done.stderr == "" and done.returncode in (0, 1), done
    told = json.loads(done.stdout)
    assert told["ok"] is (done.returncode == 0), done
    return Examined(done.returncode, [Finding(**found) for found in told["findings"]], took)


@contextlib.contextmanager
def dropped(lab: Laboratory, host: str, *matches: str) -> Iterator[None]:
    """This host's packets that match one of these filters are lost on their way."""
    run = lab.hosts[host].run
    lines = [
        "qdisc add dev eth0 root handle 1: htb default 1",
        "class add dev eth0 parent 1: classid 1:1 htb rate 10gbit",
        "class add dev eth0 parent 1: classid 1:2 htb rate 1gbit",
        "qdisc add dev eth0 parent 1:2 pfifo limit 0",
    ]
    for match in matches:
        lines.append(f"filter add dev eth0 parent 1: protocol ip prio 1 u32 {match} flowid 1:2")
    try:
        for line in lines:
            run(["tc", *line.split()], capture_output=True)
        yield
    finally:
        run(["tc", "qdisc", "del", "dev", "eth0", "root"])
