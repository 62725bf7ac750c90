"""How long the coordinator of an elastic job waits for what."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Deadlines:
    """Deadlines, in seconds."""

    shortage: float
    """How long a job may lack ranks."""
    start: float
    """How long a process may take from its start to `init`, while the job waits for it."""
    hang: float
    """How long a rank may go on while the others wait for it; 0: any time."""
    leave: float = 60.0
    """How long a worker may take to end that has no place any more."""
    agent: float = 60.0
    """How long an agent may take to start."""
    silence: float = 0.0
    """After how long a host is lost that does not answer; 0: never."""
