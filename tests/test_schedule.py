"""The command line of the schedules: it asks the core and prints what that says."""

from __future__ import annotations

import subprocess
import sys

import pytest

from horoacc import _core, schedule


def table(text: str) -> dict[str, list[str]]:
    return {line.split()[0]: line.split() for line in text.splitlines() if line}


def test_trees_beat_the_ring_at_24576_ranks() -> None:
    command = "simulate --algorithm ring,double_tree --hosts 3072 --local 8 --bytes 4K"
    run = subprocess.run(
        [sys.executable, "-m", "horoacc.schedule", *command.split()],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert run.stdout.startswith("24576 ranks on 3072 hosts, 4K bytes\nlinks: local_latency ")
    tree = table(run.stdout)["double_tree"]
    assert tree[-2:] == ["x", "faster"] and float(tree[-3]) >= 180


def test_simulate_takes_constants(capsys: pytest.CaptureFixture[str]) -> None:
    plain = ["simulate", "--algorithm", "ring", "--hosts", "4", "--local", "1", "--bytes", "64M"]
    assert schedule.main(plain) == 0
    fast = table(capsys.readouterr().out)["ring"]
    assert schedule.main([*plain, "--nic-bandwidth", "125e6"]) == 0
    slow = table(capsys.readouterr().out)["ring"]
    # 1.5 x 64 MiB over 1 Gbit/s.
    assert slow[2] == "ms" and fast[2] == "µs"
    assert float(slow[1]) == pytest.approx(1.5 * (64 << 20) / 125e6 * 1e3, rel=0.01)
    assert float(fast[1]) / 1e3 < float(slow[1]) / 50


def test_crossover(capsys: pytest.CaptureFixture[str]) -> None:
    shape = ["--hosts", "8", "--local", "1"]
    assert schedule.main(["simulate", *shape, "--crossover", "double_tree", "ring"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("ring is faster than double_tree from ")
    size = schedule.parse_bytes(last.split()[-2])
    fabric = _core.Fabric()

    def ring_wins(nbytes: int) -> bool:
        ring, tree = (_core.simulate(n, [1] * 8, nbytes, fabric) for n in ("ring", "double_tree"))
        return ring.seconds <= tree.seconds

    assert ring_wins(size) and not ring_wins(size // 2)


def test_prove_prints_what_was_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert schedule.main(["prove", "--hosts", "2", "--local", "2"]) == 0
    rows = table(capsys.readouterr().out)
    assert set(_core.algorithms()) <= set(rows)
    # rounds, a rank sends, a host sends
    assert rows["ring"][3:6] == ["6", "1.5000", "1.5000"]
    assert rows["hierarchical"][3:6] == ["4", "1.5000", "1.0000"]
    assert rows["direct_all_to_all"][-1] == "8" and rows["rail_all_to_all"][-1] == "4"


def test_unequal_hosts(capsys: pytest.CaptureFixture[str]) -> None:
    assert schedule.main(["prove", "--ranks-per-host", "3,1,2", "--root", "5"]) == 0
    assert "6 ranks on 3 hosts" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["prove", "--hosts", "65", "--local", "1"], "at most 64 ranks"),
        (["prove", "--root", "4"], "the root is rank 4"),
        (["prove", "--trees", "17"], "the number of trees"),
        (["simulate", "--hosts", "0"], "no hosts"),
        (["simulate", "--local", "0"], "a host has no ranks"),
        (["simulate", "--hosts", "70000"], "at most 65536 ranks"),
        (["simulate", "--nic-bandwidth", "0"], "positive"),
        (["simulate", "--overhead", "nan"], "not negative"),
    ],
)
def test_what_cannot_be_asked(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert schedule.main(arguments) == 1
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("text", ["4Q", "", "-1", "2T"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(schedule.argparse.ArgumentTypeError):
        schedule.parse_bytes(text)


def test_sizes_come_back() -> None:
    for text in ("1", "512", "4K", "64M", "1.5G", "1T"):
        assert schedule.format_bytes(schedule.parse_bytes(text)) == text
    assert schedule.parse_bytes("64MiB") == 64 << 20
