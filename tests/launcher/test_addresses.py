"""The addresses that a host tells others, where its own name means the loopback (row 29)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from horoacc.launcher.hosts import Host, parse_host_lines, parse_hosts

LISTEN = """
import json, socket, sys
from horoacc.launcher import addresses
listener, place = addresses.listen(json.loads(sys.argv[1]), 8)
assert listener.getsockname()[1] == int(place.rpartition(":")[2])
print(place.rpartition(":")[0])
"""
# A network of its own, in which this host's name is 127.0.1.1, as Debian's installer has it.
HOST = """
mount --bind "$0" /etc/hosts && ip link set lo up || exit 3
hostname box || exit 3
for address in $1; do
  ip link add d0 type veth peer name d1 && ip link set d1 up || exit 3
  ip link set d0 up && ip addr add $address dev d0 nodad || exit 3
  case $address in *:*) ip -6 route add default dev d0 ;; *) ip route add default dev d0 ;; esac
done
shift; exec "$@"
"""
HOSTS = "127.0.0.1 localhost\n::1 localhost\n127.0.1.1 box\n10.9.8.7 outside\nfd00::7 outside\n"


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("2001:db8::5", Host("2001:db8::5", 1)),
        ("[2001:db8::5]", Host("2001:db8::5", 1)),
        ("[2001:db8::5]:4", Host("2001:db8::5", 4)),
        ("::1", Host("::1", 1)),
        ("a:3", Host("a", 3)),
        ("a", Host("a", 1)),
    ],
)
def test_names_and_addresses_of_hosts(text: str, host: Host) -> None:
    assert parse_hosts(text) == [host] == parse_hosts(str(host))
    assert parse_host_lines(text, 1) == [host]
    assert [one.slots for one in parse_host_lines(text, 2)] == [
        2 if host.slots == 1 else host.slots
    ]


@pytest.mark.parametrize(
    ("own", "names", "expected"),
    [
        ("10.9.8.7/24", ["box"], "10.9.8.7"),
        ("fd00::7/64", ["box"], "[fd00::7]"),
        ("fd00::7/64", ["outside", "box"], "[fd00::7]"),
        ("10.9.8.7/24", ["elsewhere", "box"], "10.9.8.7"),
        ("10.9.8.7/24", ["localhost", "box"], "127.0.0.1"),
        ("10.9.8.7/24", [], "127.0.0.1"),
        ("", ["box"], "127.0.1.1"),
    ],
)
def test_a_host_listens_where_others_reach_it(
    tmp_path: Path, own: str, names: list[str], expected: str
) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text(HOSTS)
    shell = ["unshare", "--net", "--mount", "--uts", "sh", "-c", HOST, str(hosts), own]
    command = [sys.executable, "-c", LISTEN, json.dumps(names)]
    found = subprocess.run([*shell, *command], capture_output=True, text=True, check=False)
    if found.returncode == 3:
        pytest.skip(f"no network namespace here: {found.stderr}")
    assert found.stdout.strip() == expected, found.stderr
