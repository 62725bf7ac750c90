"""TCP streams in a laboratory.

    streams.py serve COUNT
    streams.py send SOURCE HOST PORT COUNT BYTES

The server prints its port, the sender the seconds that it took until everything had arrived.
"""

import socket
import sys
import threading
import time

BLOCK = 1 << 18


def _swallow(link: socket.socket) -> None:
    while link.recv(BLOCK):
        pass
    link.sendall(b"!")


def _send(link: socket.socket, count: int) -> None:
    block = memoryview(bytes(BLOCK))
    while count > 0:
        count -= link.send(block[:count])
    link.shutdown(socket.SHUT_WR)
    assert link.recv(1) == b"!"


def _all(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _serve(count: int) -> None:
    with socket.create_server(("", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        links = [listener.accept()[0] for _ in range(count)]
    _all([threading.Thread(target=_swallow, args=(link,)) for link in links])


def _run(source: str, host: str, port: int, count: int, size: int) -> None:
    own = (source, 0) if source else None
    links = [socket.create_connection((host, port), source_address=own) for _ in range(count)]
    start = time.monotonic()
    _all([threading.Thread(target=_send, args=(link, size // count)) for link in links])
    print(time.monotonic() - start)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(int(sys.argv[2]))
    else:
        _run(sys.argv[2], sys.argv[3], *map(int, sys.argv[4:]))
