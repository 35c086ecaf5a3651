"""A convolutional GAN on scikit-learn's handwritten digits, on torch's DistributedDataParallel.

    torchrun --nproc-per-node 2 examples/gan_ddp.py --steps 400 --out digits.pt

Two models, two optimizers, and a wrapper for each. The discriminator is called twice in its step, so its batch
statistics would be copied between the two calls: `broadcast_buffers=False`.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

NOISE = 16


class Gan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            *(nn.Linear(NOISE, 32 * 4), nn.Unflatten(1, (32, 2, 2)), nn.BatchNorm2d(32), nn.ReLU()),
            *(nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.BatchNorm2d(16), nn.ReLU()),
            *(nn.ConvTranspose2d(16, 1, 4, 2, 1), nn.Tanh()),
        )
        self.discriminator = nn.Sequential(
            *(nn.Conv2d(1, 16, 4, 2, 1), nn.LeakyReLU(0.2)),
            *(nn.Conv2d(16, 32, 4, 2, 1), nn.LeakyReLU(0.2)),
            *(nn.Flatten(), nn.Linear(32 * 4, 1)),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=32, help="per worker")
    parser.add_argument("--out", type=Path, default=Path("digits.pt"))
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()

    images = torch.tensor(load_digits().images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    torch.manual_seed(0)
    gan = Gan()
    generator = DistributedDataParallel(gan.generator, broadcast_buffers=False)
    discriminator = DistributedDataParallel(gan.discriminator)
    opt_g = torch.optim.Adam(gan.generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    opt_d = torch.optim.Adam(gan.discriminator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    torch.manual_seed(1 + rank)

    for step in range(args.steps):
        real = images[torch.randint(len(images), (args.batch,))]
        fake = generator(torch.randn(args.batch, NOISE))

        opt_d.zero_grad()
        scores = discriminator(torch.cat([real, fake.detach()]))
        loss_d = functional.softplus(-scores[: args.batch]).mean() + functional.softplus(scores[args.batch :]).mean()
        loss_d.backward()
        opt_d.step()

        opt_g.zero_grad()
        loss_g = functional.softplus(-discriminator(fake)).mean()
        loss_g.backward()
        opt_g.step()

        losses = torch.tensor([loss_d.item(), loss_g.item()])
        dist.all_reduce(losses)
        if rank == 0:
            print(f"step {step + 1} loss {losses[0] / size:.6f} generator {losses[1] / size:.6f}", flush=True)

    if rank == 0:
        torch.save(gan.state_dict(), args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
