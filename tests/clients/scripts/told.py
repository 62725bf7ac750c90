"""What the scripts of this folder share: the backend's name, and telling what was trained."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

import torch
from torch.distributed.tensor import DTensor

# The script's argument is a name, or `auto` where `horoacc.auto` comes in the place of Gloo.
BACKEND = next((name for name in ("horoacc", "horovod") if name in sys.argv), "gloo")
if BACKEND == "horoacc":
    import horoacc.torch  # noqa: F401 - makes the name known


def tell(tensors: Iterable[torch.Tensor], rank: int, of: str = "parameters") -> None:
    """Writes this rank's tensors to a file for the test, and whether HoroACC carried them.

    Of a DTensor it is this rank's part.
    """
    basics = sys.modules.get("horoacc.basics")
    # The ranks meet by a few calls even where Gloo trains afterwards.
    used = basics is not None and basics.is_initialized() and _submissions() > 10
    own = [t.to_local() if isinstance(t, DTensor) else t for t in tensors]
    told = [tensor.detach().clone() for tensor in own]
    torch.save((used, told), os.path.join(os.environ["TOLD"], f"{of}.{rank}.pt"))


def _submissions() -> int:
    import horoacc  # noqa: PLC0415 - Gloo's ranks do without

    return horoacc.counters()["submissions"]
