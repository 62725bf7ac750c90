import horovod.torch as hvd
import torch
from horovod.common.process_sets import ProcessSet

even_set = hvd.ProcessSet([0, 2])
odd_set = hvd.ProcessSet([1, 3])
hvd.init(process_sets=[even_set, odd_set])
assert hvd.size() == 4, "run with -np 4"

for process_set in [hvd.global_process_set, even_set, odd_set]:
    print(f"{process_set.process_set_id} {process_set.ranks}", flush=True)

own, other = (even_set, odd_set) if hvd.rank() % 2 == 0 else (odd_set, even_set)
assert own.included() and not other.included() and own.size() == 2
assert own.rank() == hvd.rank() // 2

# Each half of the processes adds up its own ranks: 0 + 2 and 1 + 3.
total = hvd.allreduce(torch.tensor([float(hvd.rank())]), op=hvd.Sum, process_set=own, name="half")
print(f"half {total.item():g}")
gathered = hvd.allgather(torch.full((own.rank() + 1, 2), hvd.rank()), process_set=own)
print(f"rows {gathered[:, 0].tolist()}")
# The root is a rank of the whole job.
root = own.ranks[1]
print(f"from {hvd.broadcast(torch.tensor([hvd.rank()]), root_rank=root, process_set=own).item()}")
hvd.barrier(process_set=own)

# A model of its own for each half.
torch.manual_seed(hvd.rank() % 2)
model = torch.nn.Linear(2, 1)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1),
    named_parameters=model.named_parameters(),
    process_set=own,
)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 2)).square().mean().backward()
    optimizer.step()
weights = hvd.allgather_object(model.weight.tolist())
assert weights[0] == weights[2] and weights[1] == weights[3] and weights[0] != weights[1]
hvd.shutdown()

# Sets that come and go while the program runs.
hvd.init(process_sets="dynamic")
low = hvd.add_process_set([0, 1])
high = hvd.add_process_set(ProcessSet([2, 3]))
mine = low if hvd.rank() < 2 else high
print(f"low or high {hvd.allreduce(torch.ones(3), op=hvd.Sum, process_set=mine)[0].item():g}")
assert hvd.remove_process_set(low) and hvd.remove_process_set(high)
assert not hvd.remove_process_set(hvd.global_process_set)

# Uneven data: rank r has r + 1 batches, and says that it has no more.
model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.zeros_(model.weight)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=1.0), named_parameters=model.named_parameters()
)
for _ in range(hvd.rank() + 1):
    optimizer.zero_grad()
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
last = hvd.join()
hvd.broadcast_parameters(model.state_dict(), root_rank=last)
# Four steps with 4, 3, 2 and 1 ranks that have data; the average is over all four.
print(f"last {last}, weight {model.weight.item():g}")
hvd.shutdown()
