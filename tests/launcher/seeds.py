"""Tests that draw their examples, from a constant seed and from a random one.

The name in the report tells the second seed; HOROACC_TEST_SEED repeats it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings

SEED = int(os.environ.get("HOROACC_TEST_SEED") or random.SystemRandom().randrange(1 << 32))
_TODAY = f"seed {SEED}"


def fuzzed(examples: int, *strategies: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Has a body run with examples of both seeds.

    Args:
        examples: How many of the first; of the second half as many.
        strategies: As for hypothesis's `given`.

    Returns:
        The decorator.
    """
    common: dict[str, Any] = {
        "deadline": None,
        "database": None,
        "suppress_health_check": list(HealthCheck),
    }

    def decorate(body: Callable[..., None]) -> Callable[..., None]:
        always = settings(**common, max_examples=examples, derandomize=True)
        today = settings(**common, max_examples=examples // 2, derandomize=False, print_blob=True)
        ways = {
            "always": always(given(*strategies)(body)),
            _TODAY: seed(SEED)(today(given(*strategies)(body))),
        }

        @pytest.mark.parametrize("drawn", ways)
        def run(drawn: str) -> None:
            ways[drawn]()

        # Not functools.wraps: pytest would look for fixtures named as the body's arguments.
        run.__name__, run.__doc__, run.__module__ = body.__name__, body.__doc__, body.__module__
        return run

    return decorate
