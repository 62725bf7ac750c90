"""What `create_settings` returns: Horovod's names, as far as Ray's actors need them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from horoacc.elastic.discovery import HostDiscovery


@dataclass
class MiniSettings:
    """Settings of an executor."""

    nics: Iterable[str] | None = None
    """Network interfaces for data between hosts."""
    verbose: int = 1
    """From 2 on, the command that starts an elastic job is printed."""
    timeout_s: float = 300
    """How long the ranks wait for each other in `init()`, in seconds."""
    placement_group_timeout_s: float = 100
    """How long the workers wait for their resources, and for their processes, in seconds."""
    elastic: bool = False
    discovery: HostDiscovery | None = None
    """Finds the hosts of an elastic job, if the executor is not to ask Ray."""
    min_num_proc: int = 1
    max_num_proc: int | None = None
    reset_limit: int | None = None
    cooldown_range: Iterable[int] | None = None
    elastic_timeout: float = 600
    ssh_identity_file: str | None = None
    """Not used: Ray starts the processes."""

    def variables(self) -> dict[str, str]:
        """What ranks get to know of it."""
        found = {"HOROACC_START_TIMEOUT": f"{self.timeout_s:g}"}
        if self.nics:
            nics = [self.nics] if isinstance(self.nics, str) else sorted(self.nics)
            found["HOROACC_NETWORK_INTERFACES"] = ",".join(nics)
        return found


def without_ssh(**given: Any) -> None:
    """Warns that arguments for ssh do nothing."""
    if names := [name for name, value in given.items() if value is not None]:
        warnings.warn(f"{', '.join(names)}: no effect, Ray starts the processes", stacklevel=3)
