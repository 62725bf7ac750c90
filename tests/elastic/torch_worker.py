"""A worker that trains with torch: torch_worker.py FOLDER BATCHES SECONDS.

The model is a linear regression, so that NumPy can replay every step. What is noted of a step is
what the step used.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from elastic_plan import happens, note
from regression import ADAM, FEATURES, LBFGS_ITERATIONS, LBFGS_RATE, MOMENTUM, RATE, samples

FOLDER, BATCHES, SECONDS = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
OPTIONS = json.loads((FOLDER / "options").read_text())
happens(worker=int(os.environ["HOROACC_WORKER"]))

import torch  # noqa: E402

import horoacc.torch as hvd  # noqa: E402
from horoacc import process  # noqa: E402

torch.set_num_threads(1)
hvd.init()
# Each rank begins elsewhere: rank 0's values count.
torch.manual_seed(100 + hvd.rank())
model = torch.nn.Linear(FEATURES, 1, bias=False).double()
rate, one, two, epsilon = ADAM.values()
made = {
    "sgd": lambda p: torch.optim.SGD(p, lr=RATE, momentum=MOMENTUM),
    "adam": lambda p: torch.optim.Adam(p, rate, (one, two), epsilon),
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=LBFGS_RATE, max_iter=LBFGS_ITERATIONS),
}[OPTIONS.get("optimizer", "sgd")](model.parameters())
passes = OPTIONS.get("passes", 1)
optimizer = hvd.DistributedOptimizer(
    made,
    named_parameters=model.named_parameters(),
    backward_passes_per_step=passes,
    op=getattr(hvd, OPTIONS.get("op", "Average")),
    compression=getattr(hvd.Compression, OPTIONS.get("compression", "none")),
)
# On each worker another: only one that all share gives the right weights.
scaler = torch.amp.GradScaler(
    "cpu", init_scale=2.0 ** (4 + int(os.environ["HOROACC_WORKER"])), growth_interval=3,
    enabled=bool(OPTIONS.get("scaler")),
)  # fmt: skip


epoch = hvd.elastic.epoch


@hvd.elastic.run
def train(state: Any) -> None:
    done = 0
    while state.batch < BATCHES:
        batch = state.batch + 1
        while hvd.size() < OPTIONS.get("waits", {}).get(str(batch), 0):
            hvd.barrier()  # so that all ranks make as many checks
            time.sleep(0.05)
            state.check_host_updates()
        where = {"batch": batch, "rank": hvd.rank()}
        if OPTIONS.get("ends") and batch % 50 == 0:  # all ranks, once one has seen it
            state.commit()  # for an error in this reduction is none of a gradient's
            seen = torch.tensor([float((FOLDER / "end").exists())])
            if hvd.allreduce(seen, name="ends", op=hvd.Sum):
                return
        happens(**where, at="begin")
        x, t = (torch.from_numpy(part) for part in samples(batch, hvd.rank()))

        def loss_of(x: Any = x, t: Any = t) -> Any:
            if not OPTIONS.get("late_zero"):
                optimizer.zero_grad()
            for part in range(passes):
                loss = ((model(x[part::passes]) - t[part::passes]) ** 2).mean()
                scaler.scale(loss).backward()
            return loss

        before = [float(w) for w in model.weight.detach()[0]]
        if OPTIONS.get("optimizer") == "lbfgs":
            optimizer.step(loss_of)
        else:
            loss_of()
            happens(**where, at="step")
            if OPTIONS.get("averages"):  # a collective between the backward pass and the step
                hvd.allreduce(torch.tensor([float(batch)]), name="loss")
            scaler.step(optimizer)
            scaler.update()
            if OPTIONS.get("late_zero"):
                optimizer.zero_grad()
        done += 1
        if done >= OPTIONS.get("reschedules", BATCHES) and epoch() > 1:
            # A scheduler that is in no state: of each worker another.
            optimizer.param_groups[0]["lr"] = RATE / (1 + hvd.rank())
        happens(**where, at="applied")
        note("batch", **where, epoch=epoch(), size=hvd.size(), before=before,
             tuned=process.engine().tuned,
             weight=[float(w) for w in model.weight.detach()[0]])  # fmt: skip
        state.batch = batch
        time.sleep(SECONDS)
        if batch % OPTIONS.get("commit_every", 1) == 0:
            state.commit()
        else:
            state.check_host_updates()


state = hvd.elastic.TorchState(model=model, optimizer=optimizer, batch=0)
note("begin", weight=[float(w) for w in model.weight.detach()[0]], rank=hvd.rank())
state.register_reset_callbacks([lambda: happens(rank=hvd.rank(), at="reset")])
train(state)
note("end", rank=hvd.rank(), size=hvd.size(), batch=state.batch,
     weight=[float(w) for w in model.weight.detach()[0]])  # fmt: skip
hvd.shutdown()
