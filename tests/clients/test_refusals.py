"""Programs that refuse a backend which they do not know, so that `horoacc.auto` is their way.

If one of them takes the name one day, docs/clients.md is to say so.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from client_jobs import SECONDS, Client, run

ACCELERATES = "Your assigned backend horoacc is not available, please use gloo"
REFUSALS = {
    "accelerate_train.py": ACCELERATES,
    "transformers_train.py": ACCELERATES,
    "ignite_train.py": "Unknown backend 'horoacc'. Available backends: ('gloo',)",
}


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("script", REFUSALS)
def test_the_name_is_refused(script: str, tmp_path: Path) -> None:
    done = run(Client(script).command("torchrun", "horoacc"), TOLD=str(tmp_path))
    assert done.returncode != 0
    assert REFUSALS[script] in done.stdout
    assert not list(tmp_path.iterdir())
