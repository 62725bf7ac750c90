"""The collectives, once for every kind of tensor.

A `Collectives` object has Horovod's functions as methods; the doors (`horoacc`, `horoacc.torch`)
export those of an object of their own. What differs between libraries is behind `Tensors`.
"""

from __future__ import annotations

from horoacc import handles, process
from horoacc.allreduces import Allreduce
from horoacc.calls import BARRIER
from horoacc.exchanges import Exchanges
from horoacc.grouped_allreduces import GroupedAllreduce
from horoacc.process_sets import ProcessSet, global_process_set
from horoacc.process_sets import number_of as set_number
from horoacc.reducescatters import Reducescatter


class Collectives(Allreduce, GroupedAllreduce, Exchanges, Reducescatter):
    """Horovod's collectives for one kind of tensor, or for the kind that `choose` finds."""


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits until every rank of the set has called it. Other sets go on.

    Args:
        process_set: The ranks that take part.

    Raises:
        HorovodInternalError: A rank was lost, or did not come in time.
    """
    engine = process.engine()
    handle = engine.submit(BARRIER, [], process_set=set_number(process_set))
    handles.synchronize(handles.start(engine, handle))
