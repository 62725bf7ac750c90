import argparse
import os

import horovod.torch as hvd
import torch
import torch.nn.functional as F
import torch.utils.data.distributed
from horovod.common.util import gpu_available

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--lr", type=float, default=0.02)
parser.add_argument("--fp16-allreduce", action="store_true", default=False)
parser.add_argument("--gradient-predivide-factor", type=float, default=1.0)
parser.add_argument("--checkpoint", default="checkpoint.pt")
args = parser.parse_args()

# Horovod: initialize library.
hvd.init()
torch.manual_seed(42)
if torch.cuda.is_available() and gpu_available("torch"):
    # Horovod: pin GPU to local rank.
    torch.cuda.set_device(hvd.local_rank())
torch.set_num_threads(1)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = torch.nn.Linear(8, 32)
        self.fc2 = torch.nn.Linear(32, 3)

    def forward(self, x):
        return F.log_softmax(self.fc2(F.relu(self.fc1(x))), dim=1)


def make_dataset(count, seed):
    generator = torch.Generator().manual_seed(seed)
    centres = 3 * torch.eye(3, 8)
    target = torch.randint(0, 3, (count,), generator=generator)
    data = centres[target] + torch.randn(count, 8, generator=generator)
    return torch.utils.data.TensorDataset(data, target)


train_dataset = make_dataset(600, seed=1)
test_dataset = make_dataset(200, seed=2)
# Horovod: use DistributedSampler to partition the training data.
train_sampler = torch.utils.data.distributed.DistributedSampler(
    train_dataset, num_replicas=hvd.size(), rank=hvd.rank()
)
train_loader = torch.utils.data.DataLoader(
    train_dataset, batch_size=args.batch_size, sampler=train_sampler
)
test_sampler = torch.utils.data.distributed.DistributedSampler(
    test_dataset, num_replicas=hvd.size(), rank=hvd.rank()
)
test_loader = torch.utils.data.DataLoader(test_dataset, batch_size=50, sampler=test_sampler)

model = Net()
# Each process starts elsewhere, and takes rank 0's parameters below.
with torch.no_grad():
    for parameter in model.parameters():
        parameter.add_(0.01 * hvd.rank())
# Horovod: scale learning rate by the number of processes.
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=0.5)
# Horovod: broadcast parameters & optimizer state.
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
# Horovod: (optional) compression algorithm.
compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
# Horovod: wrap optimizer with DistributedOptimizer.
optimizer = hvd.DistributedOptimizer(
    optimizer,
    named_parameters=model.named_parameters(),
    compression=compression,
    op=hvd.Average,
    gradient_predivide_factor=args.gradient_predivide_factor,
)


def train(epoch):
    model.train()
    # Horovod: set epoch to sampler for shuffling.
    train_sampler.set_epoch(epoch)
    for data, target in train_loader:
        optimizer.zero_grad()
        F.nll_loss(model(data), target).backward()
        # Horovod: clip what has been reduced.
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        with optimizer.skip_synchronize():
            optimizer.step()


def metric_average(value, name):
    tensor = torch.tensor(value)
    return hvd.allreduce(tensor, name=name).item()


def test():
    model.eval()
    loss = correct = 0.0
    with torch.no_grad():
        for data, target in test_loader:
            output = model(data)
            loss += F.nll_loss(output, target, reduction="sum").item()
            correct += output.argmax(dim=1).eq(target).float().sum().item()
    # Horovod: use test_sampler to determine the number of examples in this worker's partition.
    loss = metric_average(loss / len(test_sampler), "avg_loss")
    return loss, metric_average(correct / len(test_sampler), "avg_accuracy")


for epoch in range(1, args.epochs + 1):
    train(epoch)
    loss, accuracy = test()
    # Horovod: print logs and save checkpoints only on worker 0.
    if hvd.rank() == 0:
        print(f"epoch {epoch}: loss {loss:.4f}, accuracy {accuracy:.3f}", flush=True)
        torch.save(model.state_dict(), args.checkpoint)

digests = hvd.allgather_object([p.double().sum().item() for p in model.parameters()])
resume_from = hvd.broadcast_object(os.path.exists(args.checkpoint), root_rank=0)
if hvd.rank() == 0:
    print(f"same everywhere: {all(one == digests[0] for one in digests)}, saved: {resume_from}")
hvd.shutdown()
