"""Whether this machine can hold a laboratory."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess

_TOOLS = ("ip", "tc", "unshare", "nsenter", "setpriv", "sysctl")
_TRIAL = (
    "ip link add end0 type veth peer name end1 && ip link set end0 up && "
    "ip link add switch type bridge && "
    "tc qdisc add dev end0 root tbf rate 1gbit burst 256k limit 1m && "
    "tc qdisc add dev end1 root handle 1: htb"
)


@functools.cache
def missing(delay: bool = False) -> str | None:
    """Says what this machine lacks.

    Args:
        delay: Whether a delay is wanted, too.

    Returns:
        The reason why there can be no laboratory, or None if there can. Tries it, in namespaces
        that are gone when it returns.
    """
    if os.geteuid() != 0:
        return "a network laboratory needs root"
    if absent := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        return f"a network laboratory needs {', '.join(absent)} (iproute2, util-linux, procps)"
    if delay and not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "a delay needs /dev/net/tun"
    trial = ["unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--mount-proc"]
    try:
        done = subprocess.run(
            [*trial, "sh", "-c", _TRIAL], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"this machine makes no namespaces: {error}"
    if done.returncode != 0:
        return f"this machine cannot hold a network laboratory: {done.stderr.strip()}"
    return None
