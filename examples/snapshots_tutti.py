"""Training with snapshots, started with mp.spawn: the shape of many a script, on Tutti.

    python examples/snapshots_tutti.py --workers 2 --epochs 5

A Trainer gets model, data and optimizer, runs epochs over a DataLoader with a DistributedSampler, and saves a snapshot
after each epoch. Started again, it continues from the snapshot. The process group that the
script makes is used as it is.
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
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import tutti


class Trainer:
    def __init__(
        self, model: nn.Module, loader: DataLoader, optimizer: torch.optim.Optimizer, algorithm: str, snapshot: Path
    ) -> None:
        self.model, self.loader, self.optimizer, self.snapshot = model, loader, optimizer, snapshot
        self.run = tutti.distribute(model, optimizer, algorithm)
        self.first_epoch = self.run.load(snapshot)["epochs"] if snapshot.exists() else 0

    def train(self, epochs: int) -> None:
        for epoch in range(self.first_epoch, epochs):
            self.run_epoch(epoch)
            self.run.save(self.snapshot, epochs=epoch + 1)

    def run_epoch(self, epoch: int) -> None:
        self.loader.sampler.set_epoch(epoch)
        total = torch.zeros(())
        for images, labels in self.loader:
            self.optimizer.zero_grad()
            loss = functional.cross_entropy(self.model(images), labels)
            loss.backward()
            self.run.step()
            total += loss.detach()
        mean = self.run.mean(total) / len(self.loader)
        if self.run.rank == 0:
            print(f"epoch {epoch} loss {mean:.6f}", flush=True)


def work(rank: int, workers: int, port: int, args: argparse.Namespace) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=workers)
    digits = load_digits()
    dataset = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(dataset, args.batch, sampler=DistributedSampler(dataset))
    trainer = Trainer(model, loader, optimizer, args.algorithm, args.snapshot)
    trainer.train(args.epochs)
    trainer.run.close()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=32, help="per worker")
    parser.add_argument("--algorithm", default="ddp")
    parser.add_argument("--snapshot", type=Path, default=Path("snapshots"))
    args = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(work, (args.workers, port, args), nprocs=args.workers)


if __name__ == "__main__":
    main()
