"""A convolutional GAN on scikit-learn's handwritten digits, on Tutti.

    torchrun --nproc-per-node 2 examples/gan_tutti.py --steps 400 --out digits.pt

One model, two optimizers, one run: `run.step(optimizer=...)` steps with one of them.
"""

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

import tutti

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
    parser.add_argument("--algorithm", default="ddp")
    parser.add_argument("--out", type=Path, default=Path("digits.pt"))
    args = parser.parse_args()

    images = torch.tensor(load_digits().images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    torch.manual_seed(0)
    gan = Gan()
    opt_g = torch.optim.Adam(gan.generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    opt_d = torch.optim.Adam(gan.discriminator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    run = tutti.distribute(gan, [opt_g, opt_d], args.algorithm)
    torch.manual_seed(1 + run.rank)

    for step in range(args.steps):
        real = images[torch.randint(len(images), (args.batch,))]
        fake = gan.generator(torch.randn(args.batch, NOISE))

        opt_d.zero_grad()
        scores = gan.discriminator(torch.cat([real, fake.detach()]))
        loss_d = functional.softplus(-scores[: args.batch]).mean() + functional.softplus(scores[args.batch :]).mean()
        loss_d.backward()
        run.step(optimizer=opt_d)

        opt_g.zero_grad()
        loss_g = functional.softplus(-gan.discriminator(fake)).mean()
        loss_g.backward()
        run.step(optimizer=opt_g)

        losses = run.mean(torch.tensor([loss_d.item(), loss_g.item()]))
        if run.rank == 0:
            print(f"step {step + 1} loss {losses[0]:.6f} generator {losses[1]:.6f}", flush=True)

    state = run.consensus_state_dict()
    if run.rank == 0:
        torch.save(state, args.out)
    run.close()


if __name__ == "__main__":
    main()
