"""A small language model of characters on Tutti.

    torchrun --nproc-per-node 2 examples/language_model_tutti.py --text shakespeare.txt --steps 300 --out checkpoints

AdamW with two groups, a warm-up and a cosine, accumulation, clipping, autocast (--bfloat16), evaluation on worker 0,
checkpoints. Started again with --resume it continues from the last checkpoint, with the same bits.
"""

import argparse
import math
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import tutti


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
    parser.add_argument("--algorithm", default="ddp")
    parser.add_argument("--out", type=Path, default=Path("checkpoints"))
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()

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
    run = tutti.distribute(model, optimizer, args.algorithm)
    torch.manual_seed(1 + run.rank)
    first = 0
    if args.resume:
        first = run.load(args.out, schedule=schedule)["step"]

    for step in range(first, args.steps):
        mean = 0.0
        for part in range(args.accumulate):
            last = part == args.accumulate - 1
            with nullcontext() if last else run.accumulate():
                with torch.autocast("cpu", torch.bfloat16, enabled=args.bfloat16):
                    loss = model(*draw_batch(training, args.batch, args.context)) / args.accumulate
                loss.backward()
            mean += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        run.step()
        optimizer.zero_grad()
        schedule.step()

        mean = run.mean(mean)
        if run.rank == 0:
            print(f"step {step + 1} loss {mean:.6f}", flush=True)
        if (step + 1) % args.every == 0 or step + 1 == args.steps:
            with run.consensus():
                if run.rank == 0:
                    print(f"validation {evaluate(model, validation, args.context):.6f}", flush=True)
            run.save(args.out, schedule=schedule, step=step + 1)

    run.close()


if __name__ == "__main__":
    main()
