"""Makes HoroACC the default backend of torch.distributed.

import horoacc.auto

in front of a script's other imports, or without changing the script:

python -m horoacc.auto train.py --its --arguments

From then on process groups for which the script names no backend, "gloo" or "mpi" use "horoacc" for
CPU tensors. Under horoaccrun and mpirun the variables of torchrun (RANK, WORLD_SIZE, LOCAL_RANK,
LOCAL_WORLD_SIZE) are set where they are missing. `horoacc.auto.remove()` undoes the choice.
"""

from __future__ import annotations

__all__ = ["remove"]


def _install() -> None:
    from horoacc.torch import default_backend  # noqa: PLC0415 - nothing but this needs torch

    default_backend.install()


def remove() -> None:
    """Lets torch.distributed choose its backends again. Groups that exist stay as they are."""
    from horoacc.torch import default_backend  # noqa: PLC0415 - see above

    default_backend.remove()


_install()
if __name__ == "__main__":
    from horoacc import script

    script.take_over(globals())
