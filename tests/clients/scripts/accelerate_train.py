"""Accelerate, which refuses a backend that it does not know."""

from __future__ import annotations

import torch
from accelerate import Accelerator, InitProcessGroupKwargs
from tiny import data, model
from told import BACKEND, tell
from torch import nn
from torch.utils.data import DataLoader

accelerator = Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(backend=BACKEND)])
net = model()
net, optimizer, batches = accelerator.prepare(
    net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), DataLoader(data(), batch_size=8)
)
for _ in range(2):
    for x, y in batches:
        optimizer.zero_grad()
        accelerator.backward(nn.functional.cross_entropy(net(x), y))
        optimizer.step()
assert accelerator.num_processes == 2
tell(net.parameters(), accelerator.process_index)
accelerator.end_training()
