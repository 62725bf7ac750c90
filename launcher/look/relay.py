"""Asks the ranks of a job on its host, for a `horoaccrun top` on another one (remote_ranks.py).

Runs as `python -m horoacc.launcher.look.relay JOB`, and ends with its standard input.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

from horoacc.launcher.doctor.probe import MARK
from horoacc.launcher.look.asking import LocalRanks, Scope

# So long after a question whoever asked is taken for gone: `top` asks once an hour at least.
_SILENCE_SECONDS = 2 * 3600


def main() -> None:
    """Answers questions."""
    here = LocalRanks(sys.argv[1])
    signal.alarm(_SILENCE_SECONDS)
    for line in sys.stdin:
        asked = json.loads(line)
        said: dict[str, Any] = {"id": asked["id"]}
        try:
            told = here.ask(Scope.of(asked["question"]))
            said["answer"] = {"answers": told.answers.decode("latin-1"), "silent": told.silent}
        except ValueError as error:  # LookError, too
            said["error"] = str(error)
        print(MARK + json.dumps(said), flush=True)
        signal.alarm(_SILENCE_SECONDS)


if __name__ == "__main__":
    main()
