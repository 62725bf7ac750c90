"""Which hosts an elastic job of `horoacc.run` may use: Horovod's classes."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

from horoacc.launcher.hosts import parse_host_lines

_SECONDS = 30.0


class HostDiscovery:
    """Finds hosts, for `horoacc.run(…, host_discovery=…)`. Derive from it."""

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Looks for the hosts of the moment.

        Returns:
            How many ranks each may take, the preferred ones first.
        """
        raise NotImplementedError


class HostDiscoveryScript(HostDiscovery):
    """Asks a script, which prints a line `name:slots` or `name` for each host."""

    def __init__(self, discovery_script: str, default_slots: int | None = None) -> None:
        """Runs nothing yet.

        Args:
            discovery_script: A command for the shell.
            default_slots: Of hosts without a number; None: each needs one.
        """
        self._script = discovery_script
        self._slots = default_slots

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Runs the script, for 30 s at most.

        Returns:
            How many ranks each host may take.

        Raises:
            RuntimeError: The script failed, or took too long.
            ValueError: It printed something else, or no number of slots where there is no default.
        """
        try:
            done = subprocess.run(
                ["/bin/sh", "-c", self._script],
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=True,
            )
        except subprocess.CalledProcessError as error:
            said = f": {error.stderr.strip()}" if error.stderr.strip() else ""
            raise RuntimeError(
                f"the discovery script {self._script} ended with code {error.returncode}{said}"
            ) from None
        except subprocess.TimeoutExpired:
            raise RuntimeError(
                f"the discovery script {self._script} took longer than {_SECONDS:g} s"
            ) from None
        hosts = parse_host_lines(done.stdout, self._slots or 0)
        return {host.name: host.slots for host in hosts}


class FixedHosts(HostDiscovery):
    """Hosts that a program sets."""

    def __init__(self, available_hosts: Mapping[str, int]) -> None:
        """Begins with some hosts.

        Args:
            available_hosts: How many ranks each may take.
        """
        self._hosts = dict(available_hosts)

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Gives the hosts that were set last.

        Returns:
            How many ranks each may take.
        """
        return dict(self._hosts)

    def set(self, available_hosts: Mapping[str, int]) -> None:
        """Replaces the hosts.

        Args:
            available_hosts: How many ranks each may take.
        """
        self._hosts = dict(available_hosts)
