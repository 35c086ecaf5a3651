"""A small language model of characters on torch's DistributedDataParallel.

    torchrun --nproc-per-node 2 examples/language_model_ddp.py --text shakespeare.txt --steps 300 --out checkpoints

AdamW with two groups, a warm-up and a cosine, accumulation, clipping, autocast (--bfloat16), evaluation on worker 0,
checkpoints. Started again with --resume it continues from the last checkpoint.
"""

import argparse
import math
import os
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm_attention(x)).view(batch, length, 3 * self.heads, -1).transpose(1, 2).chunk(3, dim=1)
        attended = functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm_mlp(x))


class LanguageModel(nn.Module):
    def __init__(self, characters: int, context: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(characters, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, characters, bias=False)
        self.head.weight = self.token.weight
        nn.init.normal_(self.token.weight, std=0.02)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.place(torch.arange(tokens.shape[1]))
        logits = self.head(self.norm(self.blocks(x)))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def make_optimizer(self, lr: float) -> torch.optim.Optimizer:
        matrices = [p for p in self.parameters() if p.ndim > 1]
        vectors = [p for p in self.parameters() if p.ndim <= 1]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95))


def draw_batch(data: torch.Tensor, batch: int, context: int) -> tuple[torch.Tensor, torch.Tensor]:
    """From the global random state, which is another one on every worker."""
    starts = torch.randint(len(data) - context, (batch,))
    rows = torch.stack([data[start : start + context + 1] for start in starts])
    return rows[:, :-1], rows[:, 1:]


@torch.no_grad()
def evaluate(model: nn.Module, data: torch.Tensor, context: int) -> float:
    model.eval()
    starts = range(0, min(len(data) - context, 20 * context), context)
    losses = [model(data[None, i : i + context], data[None, i + 1 : i + context + 1]) for i in starts]
    model.train()
    return float(torch.stack(losses).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=8, help="per worker and backward")
    parser.add_argument("--accumulate", type=int, default=2, help="backwards per step")
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--bfloat16", action="store_true")
    parser.add_argument("--every", type=int, default=50, help="steps between evaluations and checkpoints")
    parser.add_argument("--out", type=Path, default=Path("checkpoints"))
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()

    text = args.text.read_text()
    vocabulary = {character: i for i, character in enumerate(sorted(set(text)))}
    data = torch.tensor([vocabulary[character] for character in text])
    training, validation = data.split([len(data) * 9 // 10, len(data) - len(data) * 9 // 10])

    torch.manual_seed(0)
    model = LanguageModel(len(vocabulary), args.context, args.width, args.layers, heads=4)
    optimizer = model.make_optimizer(args.lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 20, 0.1 + 0.9 * (1 + math.cos(math.pi * step / args.steps)) / 2)
    )
    torch.manual_seed(1 + rank)
    first = 0
    if args.resume:
        state = torch.load(args.out / "checkpoint.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        first = state["step"]
        # the random state of the other workers is lost: they draw their first batches again
    model = DistributedDataParallel(model)

    for step in range(first, args.steps):
        mean = 0.0
        for part in range(args.accumulate):
            last = part == args.accumulate - 1
            with nullcontext() if last else model.no_sync():
                with torch.autocast("cpu", torch.bfloat16, enabled=args.bfloat16):
                    loss = model(*draw_batch(training, args.batch, args.context)) / args.accumulate
                loss.backward()
            mean += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()

        total = torch.tensor(mean)
        dist.all_reduce(total)
        if rank == 0:
            print(f"step {step + 1} loss {total.item() / size:.6f}", flush=True)
        if ((step + 1) % args.every == 0 or step + 1 == args.steps) and rank == 0:
            print(f"validation {evaluate(model.module, validation, args.context):.6f}", flush=True)
            state = {
                "model": model.module.state_dict(),
                "optimizer": optimizer.state_dict(),
                "schedule": schedule.state_dict(),
                "step": step + 1,
            }
            os.makedirs(args.out, exist_ok=True)
            torch.save(state, args.out / "checkpoint.pt")

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
