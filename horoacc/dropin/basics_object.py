"""`_basics`: Horovod's object of everything that is not a collective, which tools reach into."""

from __future__ import annotations

from typing import Any

from horoacc import basics, builds, dtypes, process_sets
from horoacc.dropin.library import Library


class HorovodBasics:
    """Questions about the job, as the methods of one object."""

    Average = dtypes.Average
    Sum = dtypes.Sum
    Adasum = dtypes.Adasum
    Min = dtypes.Min
    Max = dtypes.Max
    Product = dtypes.Product
    MPI_LIB_CTYPES = Library()

    init = staticmethod(basics.init)
    shutdown = staticmethod(basics.shutdown)
    is_initialized = staticmethod(basics.is_initialized)
    start_timeline = staticmethod(basics.start_timeline)
    stop_timeline = staticmethod(basics.stop_timeline)
    rank = staticmethod(basics.rank)
    size = staticmethod(basics.size)
    local_rank = staticmethod(basics.local_rank)
    local_size = staticmethod(basics.local_size)
    cross_rank = staticmethod(basics.cross_rank)
    cross_size = staticmethod(basics.cross_size)
    is_homogeneous = staticmethod(basics.is_homogeneous)
    mpi_threads_supported = staticmethod(builds.mpi_threads_supported)
    mpi_enabled = staticmethod(builds.mpi_enabled)
    mpi_built = staticmethod(builds.mpi_built)
    gloo_enabled = staticmethod(builds.gloo_enabled)
    gloo_built = staticmethod(builds.gloo_built)
    nccl_built = staticmethod(builds.nccl_built)
    ddl_built = staticmethod(builds.ddl_built)
    ccl_built = staticmethod(builds.ccl_built)
    cuda_built = staticmethod(builds.cuda_built)
    rocm_built = staticmethod(builds.rocm_built)

    def __init__(self, *library: str) -> None:
        """Takes the path of Horovod's library, which is not needed here.

        Args:
            library: Not looked at.
        """
        del library

    def _get_process_set_ids_and_ranks(self) -> dict[int, list[int]]:
        basics.engine()  # raises before init()
        return process_sets.ids_and_ranks()

    def _process_set_rank(self, process_set_id: int) -> int | None:
        return process_sets.registered(process_set_id).rank()

    def _process_set_size(self, process_set_id: int) -> int | None:
        return process_sets.registered(process_set_id).size()

    def _add(self, ranks: Any) -> int | None:
        return process_sets.add_process_set(ranks).process_set_id

    def _remove(self, process_set_id: int) -> int | None:
        removed = process_sets.remove_process_set(process_sets.registered(process_set_id))
        return process_set_id if removed else None

    # Horovod's names for them.
    _add_process_set_impl = _add
    _remove_process_set_impl = _remove

    def _comm_process_set_id(self, comm: Any) -> int:
        ranks = process_sets.ProcessSet(comm).ranks
        for number, others in self._get_process_set_ids_and_ranks().items():
            if others == ranks:
                return number
        raise ValueError(f"No process set of ranks {ranks} is registered.")


BASICS = HorovodBasics()
