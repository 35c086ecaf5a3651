"""Training with snapshots, started with mp.spawn: the shape of many a script, on torch's DistributedDataParallel.

    python examples/snapshots_ddp.py --workers 2 --epochs 5

A Trainer gets model, data and optimizer, runs epochs over a DataLoader with a DistributedSampler, and saves a snapshot
after each epoch. Started again, it continues from the snapshot.
"""

import argparse
import os
import socket
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Trainer:
    def __init__(
        self, model: nn.Module, loader: DataLoader, optimizer: torch.optim.Optimizer, rank: int, snapshot: Path
    ) -> None:
        self.loader, self.optimizer, self.rank, self.snapshot = loader, optimizer, rank, snapshot
        self.first_epoch = 0
        if snapshot.exists():
            state = torch.load(snapshot, weights_only=True)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            self.first_epoch = state["epochs"]
        self.model = DistributedDataParallel(model)

    def train(self, epochs: int) -> None:
        for epoch in range(self.first_epoch, epochs):
            self.run_epoch(epoch)
            if self.rank == 0:
                self.save(epoch + 1)

    def run_epoch(self, epoch: int) -> None:
        self.loader.sampler.set_epoch(epoch)
        total = torch.zeros(())
        for images, labels in self.loader:
            self.optimizer.zero_grad()
            loss = functional.cross_entropy(self.model(images), labels)
            loss.backward()
            self.optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        if self.rank == 0:
            print(f"epoch {epoch} loss {total.item() / len(self.loader) / dist.get_world_size():.6f}", flush=True)

    def save(self, epochs: int) -> None:
        state = {"model": self.model.module.state_dict(), "optimizer": self.optimizer.state_dict(), "epochs": epochs}
        torch.save(state, self.snapshot)


def work(rank: int, workers: int, port: int, args: argparse.Namespace) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=workers)
    digits = load_digits()
    dataset = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(dataset, args.batch, sampler=DistributedSampler(dataset))
    Trainer(model, loader, optimizer, rank, args.snapshot).train(args.epochs)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=32, help="per worker")
    parser.add_argument("--snapshot", type=Path, default=Path("snapshot.pt"))
    args = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(work, (args.workers, port, args), nprocs=args.workers)


if __name__ == "__main__":
    main()
