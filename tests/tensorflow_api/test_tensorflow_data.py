"""TensorFlow's data service in Horovod's way: ranks that prepare data, ranks that train with it."""

from __future__ import annotations

import errno
import importlib
import os
import socket
import stat
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
hvd = importlib.import_module("horoacc.tensorflow")
compute_service = importlib.import_module("horoacc.tensorflow.data.compute_service")
compute_worker = importlib.import_module("horoacc.tensorflow.data.compute_worker")
listener = importlib.import_module("horoacc.tensorflow.data.listener")
one_address = importlib.import_module("horoacc.tensorflow.data.one_address")
registry = importlib.import_module("horoacc.tensorflow.data.registry")

pytestmark = pytest.mark.ranks(1, 2, 4, framework="horoacc.tensorflow")


def squares() -> Any:
    return tf.data.Dataset.range(60).map(lambda x: x * x)


def _expect_one_address(own: str) -> None:
    """What TensorFlow has this process listen at, on all addresses, is heard at this one only."""
    ports = _ports_open_to_all()
    assert ports
    for port in ports:
        with socket.create_connection((own, port), 30):
            pass
        for other in {"127.0.0.1", "127.0.0.2"} - {own}:
            with pytest.raises(TimeoutError):
                socket.create_connection((other, port), 0.2)


def _ports_open_to_all() -> set[int]:
    """Of TCP ports at which this process listens on all addresses."""
    listed = [
        line.split()[1].rpartition(":")[2]
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]
    ]
    ports = set()
    for port in {int(number, 16) for number in listed}:
        for one in one_address.listening(port):
            with one:
                if one.getsockname()[0] in ("0.0.0.0", "::"):
                    ports.add(port)
    return ports


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_what_listens_everywhere_can_hear_one_address(family: socket.AddressFamily) -> None:
    both = family == socket.AF_INET6
    with socket.create_server(("", 0), family=family, dualstack_ipv6=both) as server:
        port = server.getsockname()[1]
        one_address.hear_only(port, "127.0.0.2")
        with socket.create_connection(("127.0.0.2", port), 30) as client:
            end, _ = server.accept()
            with end:
                end.sendall(b"x" * 100_000)
                end.shutdown(socket.SHUT_WR)
                with client.makefile("rb") as said:
                    assert len(said.read()) == 100_000
        for other in ("127.0.0.1", "::1") if both else ("127.0.0.1",):
            with pytest.raises(TimeoutError):
                socket.create_connection((other, port), 0.2)
    with pytest.raises(OSError, match="nothing listens"):
        one_address.hear_only(port, "127.0.0.1")


@pytest.mark.parametrize("side", ["compute", "training"])
def test_data_comes_from_the_service(side: str) -> None:
    """Each rank is one of the preparing job, in a thread, and one of the training job."""
    me, size = hvd.rank(), hvd.size()
    folder = hvd.broadcast_object(tempfile.mkdtemp() if me == 0 else None)
    file = f"{folder}/service.json"
    worker = threading.Thread(target=compute_worker.main, args=(1, side, file, 120))
    worker.start()
    config = compute_service.TfDataServiceConfig.read(file, wait_for_file_creation=True)
    assert (config.dispatchers, config.workers_per_dispatcher) == (1, size)
    wanted = [x * x for x in range(60)]
    with compute_service.tf_data_service(config, me) as address:
        whole = squares().apply(
            tf.data.experimental.service.distribute("distributed_epoch", f"grpc://{address}")
        )
        assert sorted(int(x) for x in whole.as_numpy_iterator()) == wanted
        _expect_one_address(config.compute_client().local_address())
        hvd.allgather_object(None, name="all have read")
    if side == "compute":
        shared = squares().send_to_data_service(config, me, size, reuse_dataset=True)
        mine = [int(x) for x in shared.as_numpy_iterator()]
        parts = hvd.allgather_object(mine, name="parts")
        assert sorted(x for part in parts for x in part) == wanted
    if me == 0:
        config.compute_client(verbose=2).shutdown()
    worker.join(120)
    assert not worker.is_alive()
    assert hvd.allgather_object(Path(file).exists(), name="gone")[0] is False
    with pytest.raises(ConnectionError, match="cannot be reached"):
        config.compute_client().shutdown()


def test_two_dispatchers() -> None:
    if hvd.size() % 2:
        with pytest.raises(ValueError, match="do not divide"):
            compute_worker.main(2, "compute", "nowhere", 1)
        return
    me, size = hvd.rank(), hvd.size()
    served = registry.Registry(2, size // 2, b"key") if me == 0 else None
    made = None
    if served is not None:
        made = compute_service.TfDataServiceConfig(
            2, size // 2, "compute", served.addresses, b"key", 120
        )
    config = hvd.broadcast_object(made, name="config")
    worker = threading.Thread(target=compute_service.compute_worker_fn, args=(config,))
    worker.start()
    data = compute_service.send_to_data_service(squares(), config, me)
    assert sorted(int(x) for x in data.as_numpy_iterator()) == [x * x for x in range(60)]
    hvd.allgather_object(None, name="all have read")
    if served is not None:
        served.close()
    worker.join(120)
    assert not worker.is_alive()


def test_config_and_errors() -> None:
    served = registry.Registry(1, hvd.size() + 1, b"key")
    config = compute_service.TfDataServiceConfig(
        1, hvd.size() + 1, "compute", served.addresses, b"key", timeout=1
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.json"
        with pytest.raises(FileNotFoundError):
            compute_service.TfDataServiceConfig.read(str(file))
        config.write(str(file))
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert compute_service.TfDataServiceConfig.read(str(file)) == config
    assert compute_service.TfDataServiceConfig.from_dict(config.to_dict()) == config
    client = config.compute_client()
    with pytest.raises(TimeoutError, match="where is 0"):
        client.wait_for_dispatcher_registration(0)
    client.register_dispatcher(0, "here:1")
    assert client.wait_for_dispatcher_registration(0) == "here:1"
    with pytest.raises(ValueError, match="already"):
        client.register_dispatcher(0, "there:1")
    with pytest.raises(ValueError, match="no dispatcher 1"):
        client.register_worker_for_dispatcher(1)
    with pytest.raises(TimeoutError, match="workers of 0"):
        client.wait_for_dispatcher_worker_registration(0)
    with pytest.raises(PermissionError, match="key"):
        registry.ComputeClient(served.addresses, b"another", 1).shutdown()
    with pytest.raises(ValueError, match=f"needs {hvd.size() + 1} ranks"):
        compute_service.compute_worker_fn(config)
    for arguments, text in (
        ({"round_robin": True}, "needs reuse_dataset"),
        ({"round_robin": True, "reuse_dataset": True}, "needs the size"),
    ):
        with pytest.raises(ValueError, match=text):
            squares().send_to_data_service(config, 0, **arguments)
    with pytest.raises(ValueError, match="'compute' or 'training'"):
        compute_service.TfDataServiceConfig(1, 1, "elsewhere", {}, b"")
    with pytest.raises(ValueError, match="at least one"):
        compute_service.TfDataServiceConfig(0, 1, "compute", {}, b"")
    served.close()


def test_unauthenticated_clients_cost_little_and_learn_nothing() -> None:
    served = registry.Registry(1, 1, b"key")
    own = served.addresses["any"]
    assert all(host != "0.0.0.0" for host, _ in own) and ("127.0.0.1" in {at for at, _ in own})
    address = ("127.0.0.1", next(port for host, port in own if host == "127.0.0.1"))
    before = threading.active_count()
    idle = [socket.create_connection(address, 30) for _ in range(3 * listener.MOST_UNAUTHENTICATED)]
    client = registry.ComputeClient(served.addresses, b"key", 60)
    client.register_dispatcher(0, "here:1")  # it is served all the same, and found a place
    end = time.monotonic() + 60
    while (
        threading.active_count() > before + listener.MOST_UNAUTHENTICATED and time.monotonic() < end
    ):
        time.sleep(0.01)
    assert threading.active_count() <= before + listener.MOST_UNAUTHENTICATED
    # The oldest had to go; nobody was told anything.
    assert idle[0].recv(1) == b""
    for said in (b"GET / HTTP/1.1\r\n\r\n" + b"x" * 100, os.urandom(200)):
        with socket.create_connection(address, 30) as link:
            link.sendall(said)
            assert _rest(link) == b""
    # What a client has said once is worth nothing the next time.
    said = _overheard(address, b"key")
    with socket.create_connection(address, 30) as link:
        link.sendall(said)
        nonce, proof = _exactly(link, 32), _exactly(link, 32)
        assert proof == bytes(32) != nonce and _rest(link) == b""
    assert client.wait_for_dispatcher_registration(0) == "here:1"
    for link in idle:
        link.close()
    served.close()


def test_an_address_that_a_firewall_forbids_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The system says of it what is said of a wrong key, which ends the search."""
    served = registry.Registry(1, 1, b"key")
    port = served.addresses["any"][-1][1]
    addresses = {"any": [["192.0.2.1", 1], ["127.0.0.1", port]]}

    def dial(address: tuple[str, int], key: bytes, seconds: float) -> Any:
        if address[0] == "192.0.2.1":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return listener.dial(address, key, seconds)

    monkeypatch.setattr(registry, "dial", dial)
    client = registry.ComputeClient(addresses, b"key", 60)
    client.register_dispatcher(0, "here:1")
    assert client.wait_for_dispatcher_registration(0) == "here:1"
    with pytest.raises(listener.WrongKeyError):
        registry.ComputeClient(addresses, b"another", 1).shutdown()
    served.close()


def test_the_interface_is_chosen() -> None:
    assert listener.addresses_of(["lo"]) == ["127.0.0.1"]
    with pytest.raises(ValueError, match="no network interface 'nosuch0'"):
        listener.addresses_of(["lo", "nosuch0"])


def _exactly(link: socket.socket, count: int) -> bytes:
    return link.recv(count, socket.MSG_WAITALL)


def _rest(link: socket.socket) -> bytes:
    """What still comes, until the other end closes."""
    link.settimeout(60)
    heard = b""
    try:
        while more := link.recv(4096):
            heard += more
    except ConnectionResetError:  # not all that was said was read
        pass
    return heard


def _overheard(address: tuple[str, int], key: bytes) -> bytes:
    """What a client says to prove its key, heard by somebody between."""
    heard = b""
    with socket.create_server(("127.0.0.1", 0)) as between:
        coming = threading.Thread(target=listener.dial, args=(between.getsockname(), key, 30))
        coming.start()
        near, _ = between.accept()
        with near, socket.create_connection(address, 30) as far:
            for asked, given in ((48, 32), (32, 32)):
                heard += _exactly(near, asked)
                far.sendall(heard[-asked:])
                near.sendall(_exactly(far, given))
        coming.join()
    return heard
