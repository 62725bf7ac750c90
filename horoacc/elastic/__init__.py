"""Training that can go back to its last commit: state, and the loop around a training function.

This part knows no framework; `horoacc.torch.elastic` holds models, optimizers and samplers.

    @hvd.elastic.run
    def train(state):
        for state.batch in range(state.batch, batches):
            ...
            state.commit()

    train(hvd.elastic.ObjectState(batch=0))

In a job that `horoaccrun --min-np` started, ranks that die are left out or replaced, and others
come (docs/elastic.md). In another job the ranks are fixed; `horoacc.elastic.loop` says what holds.
"""

from horoacc.elastic.discovery import FixedHosts, HostDiscovery, HostDiscoveryScript
from horoacc.elastic.loop import notification_manager, run, run_fn
from horoacc.elastic.member import epoch
from horoacc.elastic.notices import HostUpdateResult
from horoacc.elastic.state import ObjectState, State
from horoacc.errors import HorovodInternalError, HostsUpdatedInterrupt

__all__ = [
    "FixedHosts",
    "HorovodInternalError",
    "HostDiscovery",
    "HostDiscoveryScript",
    "HostUpdateResult",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "epoch",
    "notification_manager",
    "run",
    "run_fn",
]
