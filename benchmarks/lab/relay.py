"""A switch that holds every packet for a while: `python -I -S relay.py SECONDS ADDRESS=PID…`.

Each host gets a TUN device `eth0`; a packet that a host sends there is handed to the host with its
destination's address SECONDS later. (The kernels this is made for have no netem, and a proxy of
streams would hide the delay from TCP.) Prints "ready" once the devices exist; runs until killed.
"""

import collections
import ctypes
import fcntl
import os
import select
import socket
import struct
import sys
import time

_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x1, 0x1000
_LONGEST = 65536
# Packets of one device before the others have their turn.
_TURN = 64


def _device(pid: str) -> int:
    """Makes eth0 in the network of a process; the descriptor works from anywhere."""
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(network, _CLONE_NEWNET) != 0:
        sys.exit(f"relay: setns: {os.strerror(ctypes.get_errno())}")
    os.close(network)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", b"eth0", _IFF_TUN | _IFF_NO_PI))
    return device


def _main(delay: float, places: dict[str, str]) -> None:
    devices = {socket.inet_aton(address): _device(pid) for address, pid in places.items()}
    print("ready", flush=True)
    poll = select.poll()
    for device in devices.values():
        poll.register(device, select.POLLIN)
    # All packets wait equally long, so the first in is the first out.
    held: collections.deque[tuple[float, int, bytes]] = collections.deque()
    while True:
        timeout = max(0.0, held[0][0] - time.monotonic()) * 1000 if held else None
        for device, _ in poll.poll(timeout):
            for _ in range(_TURN):
                try:
                    packet = os.read(device, _LONGEST)
                except BlockingIOError:
                    break
                except OSError:  # the device is still down
                    poll.modify(device, select.POLLIN)
                    break
                target = devices.get(packet[16:20])
                if target is not None and packet[0] >> 4 == 4:
                    held.append((time.monotonic() + delay, target, packet))
        now = time.monotonic()
        while held and held[0][0] <= now:
            _, target, packet = held.popleft()
            try:
                os.write(target, packet)
            except OSError:
                continue  # a full or closed device drops, as a wire does


if __name__ == "__main__":
    _main(float(sys.argv[1]), dict(argument.split("=") for argument in sys.argv[2:]))
