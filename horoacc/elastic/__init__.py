"""Training that can go back to its last commit: state, and the loop around a training function.

This part knows no framework; `horoacc.torch.elastic` holds models, optimizers and samplers.

    @hvd.elastic.run
    def train(state):
        for state.batch in range(state.batch, batches):
            ...
            state.commit()

    train(hvd.elastic.ObjectState(batch=0))

The number of ranks of a job is fixed today, so nothing replaces a rank that has died: the others
restore their last commit and raise an error that says so (`horoacc.elastic.loop`).
"""

from horoacc.elastic.loop import notification_manager, run, run_fn
from horoacc.elastic.member import epoch
from horoacc.elastic.notices import HostUpdateResult
from horoacc.elastic.state import ObjectState, State
from horoacc.errors import HorovodInternalError, HostsUpdatedInterrupt

__all__ = [
    "HorovodInternalError",
    "HostUpdateResult",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "epoch",
    "notification_manager",
    "run",
    "run_fn",
]
