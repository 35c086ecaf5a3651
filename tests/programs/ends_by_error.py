"""A user's script that fails on worker 1; arguments are rank and port."""

import os
import sys

import torch
from torch import nn

os.environ.update(RANK=sys.argv[1], WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[2])

from tutti.engine import distribute

torch.set_num_threads(1)
model = nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = distribute(model, optimizer)
for step in range(9):
    if (run.rank, step) == (1, 2):
        raise LookupError("the dog ate it")
    optimizer.zero_grad()
    run.model(torch.randn(5, 3) + run.rank).square().mean().backward()
    run.step()
