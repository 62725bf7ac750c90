"""The tests of this folder need the environment of `make test-clients`, which has the clients."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
ENVIRONMENT = HERE.parents[1] / ".venv-clients"

sys.path.insert(0, str(HERE))
collect_ignore_glob = [] if Path(sys.prefix) == ENVIRONMENT else ["test_*.py"]
