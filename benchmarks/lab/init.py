"""Process 1 of a laboratory; runs as a plain file: `python -I -S init.py NAME…`, hosts on stdin.

It starts the holder of each host's namespaces, says their process ids, and lives until its standard
input closes. With it ends its process namespace: every process of the laboratory is killed, and the
namespaces, interfaces and mounts go with the last one. Nothing of it has a name in the file system.

stdin: the hosts file's length in bytes and a line end, then the hosts file.
stdout: a line with the holders' process ids, as the laboratory counts them.
"""

import ctypes
import os
import signal
import socket
import sys

_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWIPC, _CLONE_NEWNET = (
    0x20000,
    0x4000000,
    0x8000000,
    0x40000000,
)
_MS_BIND = 0x1000
_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def _mount(source: str, target: str, kind: str, flags: int) -> None:
    words = (source.encode(), target.encode(), kind.encode(), flags, None)
    _check(_libc.mount(*words), f"mount on {target}")


def _become_host(name: str, hosts_file: bytes) -> None:
    """A network, a host name, a /dev/shm and an /etc/hosts of its own."""
    _check(_libc.unshare(_CLONE_NEWNS | _CLONE_NEWUTS | _CLONE_NEWIPC | _CLONE_NEWNET), "unshare")
    socket.sethostname(name)
    _mount("tmpfs", "/dev/shm", "tmpfs", 0)
    # The file lives on in its mount when its name is gone.
    path = "/dev/shm/hosts"
    with open(path, "wb") as file:
        file.write(hosts_file)
    _mount(path, "/etc/hosts", "", _MS_BIND)
    os.unlink(path)


def _hold(name: str, hosts_file: bytes) -> int:
    """Starts the process that keeps a host's namespaces; its process id once they are there."""
    ready, ready_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _become_host(name, hosts_file)
        except OSError as error:
            os.write(2, f"host {name}: {error}\n".encode())
            os._exit(1)
        os.write(ready_end, b"r")
        for fd in (0, 1, ready, ready_end):
            os.close(fd)
        while True:
            signal.pause()
    os.close(ready_end)
    if os.read(ready, 1) != b"r":
        sys.exit(1)
    os.close(ready)
    return pid


def _main(names: list[str]) -> int:
    # Whoever a host's process leaves behind is this one's child, and nobody's zombie.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    length = int(sys.stdin.buffer.readline())
    hosts_file = sys.stdin.buffer.read(length)
    pids = [_hold(name, hosts_file) for name in names]
    os.write(1, (" ".join(map(str, pids)) + "\n").encode())
    while os.read(0, 1):
        pass
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
