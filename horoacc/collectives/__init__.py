"""The collectives, once for every kind of tensor.

A `Collectives` object has Horovod's functions as methods; `horoacc` and `horoacc.torch` each export
the methods of an object of their own. `Tensors` hides the differences between libraries.
"""

from __future__ import annotations

import operator
import sys
from typing import TYPE_CHECKING

from horoacc import handles, process
from horoacc.collectives.allreduces import Allreduces
from horoacc.collectives.calls import JOIN
from horoacc.collectives.engine_outputs import T
from horoacc.collectives.exchanges import Exchanges
from horoacc.collectives.reducescatters import Reducescatters
from horoacc.process_sets import ProcessSet, global_process_set
from horoacc.process_sets import number_of as set_number

if TYPE_CHECKING:
    from horoacc._core import Output


class Collectives(Allreduces[T], Exchanges[T], Reducescatters[T]):
    """Horovod's collectives for one kind of tensor, or for the kind that `choose` finds."""


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits until every rank of the set has called it. Other sets go on.

    Args:
        process_set: The ranks that take part.

    Raises:
        HorovodInternalError: A rank was lost, or did not come in time.
    """
    process.engine().barrier(set_number(process_set))


def join(device: int = -1) -> int:
    """Says that this rank has nothing more to reduce, and waits until every rank has said so.

    For data that is spread unevenly: a rank that has run out of it calls this after its last step.
    From then on all allreduces of the others run with zeros in the place of this rank, and Average
    goes on dividing by the number of all ranks. Calls that this rank has submitted before are
    carried out. Other collectives raise on all ranks that call them, naming the ranks that have
    joined; so do calls that are made of such: `Compression.int8`, the allreduce of sparse tensors,
    and SyncBatchNorm. Once all ranks have joined, everything is as before.

    An exception of a signal's handler ends the wait; this rank has joined all the same. The next
    call waits for the same join; if that is over, and this rank has called nothing else since, it
    gives its result.

    It concerns the global process set; collectives of other sets need all their ranks as ever.

    Args:
        device: As in Horovod, where zeros are made; not used, as no zeros are made.

    Returns:
        The rank that joined last, the same on every rank.

    Raises:
        TypeError: `device` is no integer. This rank has joined all the same.
        HorovodInternalError: A rank was lost or has shut down.
    """
    engine = process.engine()
    handle = engine.submit(JOIN, [])
    last: int = handles.result(handles.start(engine, handle, None, _last_rank))
    process.join_ended()
    operator.index(device)  # checked last: the other ranks have joined, so this rank must join too
    return last


def _last_rank(outputs: list[Output]) -> int:
    (last,) = outputs
    return int.from_bytes(memoryview(last), sys.byteorder, signed=True)
