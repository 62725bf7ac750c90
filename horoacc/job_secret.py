"""The job's secret, which a rank takes out of its environment: what it starts shall not have it."""

from __future__ import annotations

import os

_VARIABLE = "HOROACC_SECRET"


class _Kept:
    text = ""


def environ() -> dict[str, str]:
    """This process's variables, with the secret that it has or had; that is in no other's now.

    A process that joins a job again has the secret that it had, unless it was given another.
    """
    _Kept.text = os.environ.pop(_VARIABLE, "") or _Kept.text
    return {**os.environ, **({_VARIABLE: _Kept.text} if _Kept.text else {})}
