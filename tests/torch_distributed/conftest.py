"""Makes `world` importable here as it is in the ranks, which have this folder on their path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
