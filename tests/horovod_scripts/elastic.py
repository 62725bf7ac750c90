import sys

import horovod.torch as hvd
import torch
from horovod.common.exceptions import HorovodInternalError

hvd.init()
torch.manual_seed(7)
torch.set_num_threads(1)

lr = 0.02
epochs = 3
batch_size = 4
batches_per_commit = 2
fail_once = len(sys.argv) > 1 and sys.argv[1] == "fail"

generator = torch.Generator().manual_seed(1)
inputs = torch.randn(96, 3, generator=generator)
targets = inputs @ torch.tensor([[1.0], [-2.0], [0.5]])
dataset = torch.utils.data.TensorDataset(inputs, targets)
sampler = hvd.elastic.ElasticSampler(dataset, shuffle=True, seed=5)
loader = torch.utils.data.DataLoader(dataset, batch_size=batch_size, sampler=sampler)

model = torch.nn.Linear(3, 1, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=lr * hvd.size(), momentum=0.5)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


@hvd.elastic.run
def train(state):
    global fail_once
    for state.epoch in range(state.epoch, epochs):
        state.loss = 0.0
        for state.batch, (data, target) in enumerate(loader):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(data), target)
            loss.backward()
            optimizer.step()
            state.loss = loss.item()
            state.sampler.record_batch(state.batch, batch_size)
            if fail_once and state.epoch == 1 and state.batch == 3:
                fail_once = False
                raise HorovodInternalError("a collective has failed")
            if state.batch % batches_per_commit == 0:
                state.commit()
        state.sampler.set_epoch(state.epoch + 1)
        state.commit()
    return hvd.allreduce(torch.tensor(state.loss), name="loss").item()


def on_state_reset():
    # Adjust learning rate on reset.
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr * hvd.size()
    print("reset", flush=True)


state = hvd.elastic.TorchState(
    model=model, optimizer=optimizer, sampler=sampler, epoch=0, batch=0, loss=0.0
)
state.register_reset_callbacks([on_state_reset])
loss = train(state)
weights = [round(value, 2) for value in model.weight[0].tolist()]
print(f"loss {'small' if loss < 1e-2 else loss}, weights {weights}, epoch {state.epoch}")
