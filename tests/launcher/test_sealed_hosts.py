"""What seals between hosts, as a user sets it: it works, or all ranks say at once why it cannot."""

from __future__ import annotations

import sys

import pytest
from launcher_jobs import MODES, RANK, Job

PROGRAM = """
import sys
import numpy as np
import horoacc as hvd
try:
    hvd.init()
    me, size = hvd.rank(), hvd.size()
    for length in (1, 1003, 1 << 20):
        got = hvd.allreduce(np.arange(length) % 97 * (me + 1), name=f"of {length}", op=hvd.Sum)
        assert (got == np.arange(length) % 97 * (size * (size + 1) // 2)).all()
    assert hvd.allgather_object({me}) == [{rank} for rank in range(size)]
    hvd.shutdown()
    print("right", flush=True)
except (hvd.errors.ConfigError, hvd.HorovodInternalError) as error:
    print(f"{error.culprit}: {error}".replace("\\n", " "), flush=True)
    sys.exit(3)
"""
WITHOUT = "HOROACC_CRYPTO_LIBRARY=/nowhere"


def said(job: Job, of_rank_1: str, *flags: str) -> list[str]:
    """What each rank says; rank 1 has a variable of its own."""
    own = f'[ {RANK} != 1 ] || export {of_rank_1}; exec "$@"'
    line = ["sh", "-c", own, "sh", sys.executable, "-c", PROGRAM]
    done = job.run("--simulated-hosts", "1+1", *flags, "-np", "2", *line, code=None)
    return [text for rank in (0, 1) for text in done.of(rank)]


@pytest.mark.parametrize(
    "flags",
    [[], ["--encrypt"], ["--link-mac", "hmac-sha256"], ["--link-mac", "none"],
     ["--crypto-library", "/nowhere"]],
    ids=str,
)  # fmt: skip
def test_data_between_hosts_are_right(job: Job, flags: list[str]) -> None:
    assert said(job, "NOTHING=1", "--tcp", *flags) == ["right", "right"]


@pytest.mark.parametrize(
    ("of_rank_1", "flags", "words"),
    [
        (
            WITHOUT,
            [],
            "1: rank(s) 1 cannot seal by AES-GCM what goes between hosts, and others can",
        ),
        (WITHOUT, ["--encrypt"], "1: rank(s) 1 cannot seal by AES-GCM what goes between hosts: no"),
        ("HOROACC_ENCRYPT=1", [], "1: setting 'encrypt' differs: rank 0 has '0', rank 1 has '1'"),
        ("HOROACC_LINK_MAC=none", [], "1: setting 'link_mac' differs: rank 0 has 'auto'"),
        ("NOTHING=1", ["--encrypt", "--link-mac", "none"], "None: setting 'encrypt' needs AES-GCM"),
        (
            "NOTHING=1",
            ["--encrypt", "--transport-plugin", "/nowhere"],
            "None: setting 'encrypt' is for HoroACC's own connections",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_sealed_is_said_at_once_by_all(
    job: Job, of_rank_1: str, flags: list[str], words: str
) -> None:
    told = said(job, of_rank_1, "--tcp", *flags)
    assert len(told) == 2 and all(line.startswith(words) for line in told), told


@pytest.mark.parametrize("mode", ["openmpi", "mpich"])
def test_control_messages_over_mpi_have_tags(job: Job, mode: str) -> None:
    flags = [*MODES[mode], "--control", "mpi"]
    assert said(job, "NOTHING=1", *flags) == ["right", "right"]
    told = said(job, "NOTHING=1", *flags, "--encrypt")
    words = "None: setting 'encrypt' is for HoroACC's own connections"
    assert len(told) == 2 and all(line.startswith(words) for line in told), told
