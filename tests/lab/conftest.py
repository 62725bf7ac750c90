"""Fixtures for tests in the network laboratory of benchmarks/lab."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
for room in ("launcher", "faults", "elastic"):
    sys.path.insert(0, str(ROOT / "tests" / room))

from benchmarks.lab import Laboratory, Network, missing  # noqa: E402


@pytest.fixture(scope="module")
def build() -> Iterator[Callable[[Network], Laboratory]]:
    """Builds laboratories that live until the module's tests are over, each network once."""
    with contextlib.ExitStack() as stack:
        built: dict[Network, Laboratory] = {}

        def of(network: Network) -> Laboratory:
            if reason := missing(network.delay > 0):
                pytest.skip(reason)
            if network not in built:
                built[network] = stack.enter_context(Laboratory(network))
            return built[network]

        yield of
