"""Gives Prometheus the metrics of a host's ranks: over HTTP, and in a file.

The lowest rank of the host does; the others answer it. Nothing runs between two questions.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast
from wsgiref import simple_server

from horoacc import process, settings
from horoacc._version import __version__
from horoacc.errors import ConfigError
from horoacc.monitor import readings
from horoacc.monitor.door import SHORT, SHORT_SECONDS
from horoacc.monitor.families import FAMILIES, samples
from horoacc.start import tell_once

_REQUEST_SECONDS = 5.0

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric
    from prometheus_client.registry import Collector


def start() -> None:
    """Starts what the settings ask for, until `shutdown()`. The job goes on without it.

    Raises:
        ConfigError: prometheus-client is not installed.
    """
    values = settings.read(os.environ)
    port, path = int(str(values["metrics_port"])), str(values["metrics_file"])
    if not port and not path:
        return
    if importlib.util.find_spec("prometheus_client") is None:
        raise ConfigError(
            "HOROACC_METRICS_PORT and HOROACC_METRICS_FILE need prometheus-client: "
            'pip install "horoacc[metrics]"'
        )
    with contextlib.ExitStack() as stack:
        try:
            stack.callback(readings.Answering().close)
            if process.position().local_rank == 0:
                if port:
                    address = str(values["metrics_address"])
                    stack.callback(_serve(address, port))
                if path:
                    writing = _Writing(path, float(str(values["metrics_seconds"])))
                    stack.callback(writing.close)
        except OSError as error:
            where = f"port {port} of {values['metrics_address']}" if port else path
            tell_once(f"no metrics are told at {where}: {error.strerror or error}")
        process.before_shutdown(stack.pop_all().close)


class _Ranks:
    """The host's ranks, as prometheus_client asks for them."""

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily, Metric  # noqa: PLC0415 - an extra

        try:
            found, where = readings.of_host(), process.position()
        except ValueError:
            return  # the rank has left
        up = GaugeMetricFamily("horoacc_rank_up", "Whether it answers.", labels=["local_rank"])
        for local_rank, reading in found.items():
            up.add_metric([str(local_rank)], reading is not None)
        yield up
        labels = {
            "version": __version__,
            "host": str(where.cross_rank),
            "hosts": str(where.cross_size),
        }
        job = GaugeMetricFamily("horoacc_job", "The number of ranks.", labels=[*labels])
        job.add_metric([*labels.values()], where.size)
        yield job
        families = {family: Metric(family.name, family.help, family.kind) for family in FAMILIES}
        for reading in found.values():
            for one in samples(reading.counters) if reading is not None else ():
                total = "_total" if one.family.kind == "counter" else ""
                of = {"rank": str(reading.rank)} if reading is not None else {}
                own = {one.family.label: one.value} if one.family.label else {}
                families[one.family].add_sample(f"{one.family.name}{total}", of | own, one.number)
        yield from families.values()


def _registry() -> CollectorRegistry:
    from prometheus_client import CollectorRegistry  # noqa: PLC0415 - an extra

    registry = CollectorRegistry()
    registry.register(cast("Collector", _Ranks()))
    return registry


def _serve(address: str, port: int) -> Any:
    """Serves HTTP; gives what ends it."""
    from prometheus_client import make_wsgi_app  # noqa: PLC0415 - an extra

    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    made = type("Server", (_Server,), {"address_family": family})
    server: simple_server.WSGIServer = simple_server.make_server(
        address,
        port,
        make_wsgi_app(_registry()),
        made,
        _Handler,
    )
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            server.handle_request()

    thread = threading.Thread(target=serve, name="horoacc-metrics-http", daemon=True)
    thread.start()

    def close() -> None:
        over.set()
        with contextlib.suppress(OSError):
            server.socket.shutdown(socket.SHUT_RDWR)
        thread.join()
        server.server_close()

    return close


def _cut(request: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has just ended
        request.shutdown(socket.SHUT_RDWR)


class _Handler(simple_server.WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


class _Server(socketserver.ThreadingMixIn, simple_server.WSGIServer):
    """Whoever reaches the port takes few threads and descriptors of the rank."""

    daemon_threads = True

    def __init__(self, *args: Any) -> None:
        self._free = threading.Semaphore(8)
        super().__init__(*args)

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # WSGIServer's looks the host's name up
        self.setup_environ()

    def setup_environ(self) -> None:
        self.server_name, self.server_port = "", self.server_address[1]
        super().setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def get_request(self) -> Any:
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in SHORT:  # the waiting connection makes the socket readable again
                time.sleep(SHORT_SECONDS)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        # Of the whole request: a socket's own time-out begins anew with each byte.
        late = threading.Timer(_REQUEST_SECONDS, _cut, [request])
        late.daemon = True
        late.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            late.cancel()
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A peer that goes away, or is slow, is no news."""


class _Writing:
    """Writes a file from time to time, and removes it: a job that is over has no numbers."""

    def __init__(self, path: str, seconds: float) -> None:
        self._path = path
        self._seconds = seconds
        self._registry = _registry()
        self._over = threading.Event()
        self._write()  # an OSError is the caller's
        self._thread = threading.Thread(target=self._run, name="horoacc-metrics-file", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            os.unlink(self._path)

    def _write(self) -> None:
        from prometheus_client import write_to_textfile  # noqa: PLC0415 - an extra

        write_to_textfile(self._path, self._registry)

    def _run(self) -> None:
        while not self._over.wait(self._seconds):
            with contextlib.suppress(OSError):  # the disk may have room again
                self._write()
