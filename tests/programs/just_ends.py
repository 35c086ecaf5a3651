"""A user's script as short as can be: arguments are rank, workers, port and algorithm."""

import os
import sys

import torch
from torch import nn

os.environ.update(RANK=sys.argv[1], WORLD_SIZE=sys.argv[2], MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[3])

from tutti.engine import distribute

torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = distribute(model, optimizer, sys.argv[4])
for _ in range(12):  # as many as a size of buckets is sought in
    optimizer.zero_grad()
    run.model(torch.randn(5, 3) + run.rank).square().mean().backward()
    run.step()
