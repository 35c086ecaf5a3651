"""What the server that workers are forked from imports once."""

import torch
import torch._dynamo
import torch.distributed
import torch.nn.parallel

import tutti.engine
from loop_patterns.registry import load

torch.set_num_threads(1)
load()
assert tutti.engine.distribute
