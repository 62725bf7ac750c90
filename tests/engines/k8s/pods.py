"""What a kubelet and the controller of Jobs do with a manifest, as far as the ranks notice it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml
from launcher_jobs import Job

from benchmarks.lab import Laboratory

ROOT = Path(__file__).resolve().parents[3]
NAME = "digits"
HOROACCRUN = (sys.executable, "-m", "horoacc.launcher.main")


def manifest(*flags: str, code: int = 0) -> str:
    """What horoaccrun prints, or its error."""
    own = ("k8s", "manifest", *flags)
    done = subprocess.run([*HOROACCRUN, *own], capture_output=True, text=True, check=False)
    assert done.returncode == code, done
    return done.stderr if code else done.stdout


class Pods:
    """The pods of one Job."""

    def __init__(self, lab: Laboratory, folder: Path, pods: int, line: tuple[str, ...]) -> None:
        self.job = Job()
        self._lab = lab
        self._hosts = folder / "hosts"
        self._hosts.write_text("127.0.0.1 localhost\n")
        flags = ("--name", NAME, "--image", "none", "--pods", str(pods), "--grace", "20")
        told = list(yaml.safe_load_all(manifest(*flags, "--", *line)))
        self._secret = next(each for each in told if each["kind"] == "Secret")["stringData"]
        self._spec = told[-1]["spec"]["template"]["spec"]
        for index, host in enumerate(lab.hosts.values()):
            host.run(["umount", "/etc/hosts"])
            host.run(["mount", "--bind", str(self._hosts), "/etc/hosts"])
            host.run(["hostname", f"{NAME}-{index}"])
        self._addresses = [host.addresses[0] for host in lab.hosts.values()]

    def only_ipv6(self) -> None:
        """Takes the hosts their IPv4."""
        for index, host in enumerate(self._lab.hosts.values()):
            self._addresses[index] = f"fd00::{index + 1}"
            host.run(["sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=0"])
            host.run(["ip", "-4", "address", "flush", "dev", "eth0"])
            own = f"{self._addresses[index]}/64"
            host.run(["ip", "address", "add", own, "dev", "eth0", "nodad"])

    def start(self, index: int, *command: str, **more: str) -> subprocess.Popen[str]:
        """Starts the pod with an index, or a command in its place."""
        host = self._host(index)
        host.run(["rm", "-f", "/dev/shm/horoacc.alive"])
        name = f"{NAME}-{index}"
        with self._hosts.open("a") as file:
            file.write(f"{self._addresses[index]} {name}.{NAME} {name}\n")
        (container,) = self._spec["containers"]
        environ = self.job.environ(JOB_COMPLETION_INDEX=str(index))
        environ |= {"PYTHONPATH": "", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        for each in container["env"]:
            environ[each["name"]] = each.get("value") or self._secret["secret"]
        return host.popen(
            command or container["command"], env=environ | more,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def probe(self, index: int) -> bool:
        """Whether the liveness probe of a pod passes."""
        probe = self._spec["containers"][0]["livenessProbe"]["exec"]["command"]
        return self._host(index).run(probe, check=False, capture_output=True).returncode == 0

    def processes(self, index: int) -> list[int]:
        """The processes of a pod, its first first."""
        own, found = os.readlink(f"/proc/{self._host(index).pid}/ns/net"), []
        for pid, _ in sorted(self.job.alive()):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/ns/net") == own:
                    found.append(pid)
        return found

    def kill(self, index: int) -> None:
        """A pod's node is gone: all of its processes."""
        for pid in self.processes(index):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def terminate(self, index: int) -> None:
        """What a kubelet does first: SIGTERM to the first process."""
        for pid, line in sorted(self.job.alive()):
            with contextlib.suppress(OSError):
                own = pid in self.processes(index)
                if own and "horoacc.launcher.main" in line.partition(" -np ")[0]:
                    os.kill(pid, signal.SIGTERM)
                    return
        raise AssertionError(f"pod {index} has no horoaccrun")

    def end(self, pods: list[Any], code: int | None = 0, seconds: float = 90.0) -> list[str]:
        """Waits for pods; what each has printed, its stderr behind its stdout."""
        end, texts = time.monotonic() + seconds, []
        for pod in pods:
            out, err = pod.communicate(timeout=max(1.0, end - time.monotonic()))
            texts.append(out + err)
            assert code is None or pod.returncode == code, (pod.returncode, texts)
        return texts

    def _host(self, index: int) -> Any:
        return list(self._lab.hosts.values())[index]
