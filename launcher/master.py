"""Where programs for torch.distributed meet: MASTER_ADDR and MASTER_PORT, as torchrun sets them."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Mapping

from horoacc.launcher.addresses import address_towards
from horoacc.launcher.arguments import Options
from horoacc.launcher.hosts import is_this_host

_FIRST_PORT, _PORTS = 20_000, 10_000  # below those that systems give out by themselves


class Master:
    """The address of rank 0 for one job. The port is kept for it while this object lives.

    Attributes:
        variables: What all ranks get: MASTER_ADDR, MASTER_PORT, and HOROACC_MASTER, by which a rank
            knows that they are the launcher's.
    """

    def __init__(self, options: Options, environ: Mapping[str, str]) -> None:
        """Chooses them. A user's own stay; those of an outer job, which gave a RANK, do not.

        Raises:
            OSError: There is no free port.
        """
        own = {} if "RANK" in environ else environ
        self.variables: dict[str, str] = {}
        self._kept: socket.socket | None = None
        if "MASTER_ADDR" in own and "MASTER_PORT" in own:
            return
        host = own.get("MASTER_ADDR") or self._host(options)
        port = own.get("MASTER_PORT") or str(self._port(options))
        self.variables = {
            "MASTER_ADDR": host, "MASTER_PORT": port, "HOROACC_MASTER": f"{host}:{port}"
        }  # fmt: skip

    def close(self) -> None:
        """Gives the port back."""
        if self._kept is not None:
            self._kept.close()

    @staticmethod
    def _host(options: Options) -> str:
        if not options.others():
            return "127.0.0.1"
        first = options.hosts[0].name
        if not is_this_host(first):
            return first
        try:
            return address_towards(options.others()[0])[1]
        except OSError:  # a name that only the launch agent knows
            return socket.gethostname()

    def _port(self, options: Options) -> int:
        if options.others() and not is_this_host(options.hosts[0].name):
            return _FIRST_PORT + secrets.randbelow(_PORTS)  # nobody can look there from here
        # Bound and not listening, with SO_REUSEADDR: no other program gets the port, and rank 0,
        # which sets that too, can listen on it.
        self._kept = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._kept.bind(("", 0))
        return int(self._kept.getsockname()[1])
