"""Gradients through one discrete variable: ``python examples/discrete_vae.py --out vae.png``

A variational auto-encoder with a categorical latent variable z: an encoder q(z | x), a decoder p(x | z). The gradient
of the bound

    E_q[f(z)],   f(z) = ln p(x | z) + ln p(z) − ln q(z | x)

with respect to the logits of q cannot be back-propagated through the choice of z. With few categories it can be
computed exactly, by adding up all of them. Here that is the yardstick: how far off are estimates on average (bias), and
how much do they scatter (variance)? The usual remedy, Gumbel-softmax, replaces z by a soft mixture of all categories;
that is differentiable, but the gradient of another function. The estimators of this library evaluate f at categories
only, and are right on average.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

import matplotlib
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from corollout import estimate_gradient

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # after the choice of how to draw

CATEGORIES, PIXELS, IMAGES = 8, 24, 10
# Names of estimators, and on how many categories each evaluates f, at most.
ESTIMATORS = {
    "reinforce": "1",
    "rloo-2": "2",
    "rloo-4": "4",
    "set-4": "4",
    "ars-1": "8",
    "arsm": "8",
    "set-8": "8: all of them",
}
TEMPERATURES = (1.0, 0.5, 0.1)


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(PIXELS, 32), nn.Tanh(), nn.Linear(32, CATEGORIES))
        # Not linear in z: otherwise a soft mixture of categories would be as good as a choice among them.
        self.decoder = nn.Sequential(nn.Linear(CATEGORIES, 32), nn.Tanh(), nn.Linear(32, PIXELS))

    def log_likelihood(self, x: Tensor, z: Tensor) -> Tensor:
        """ln p(x | z) of independent pixels; z is a category as a one-hot vector, or a mixture of them."""
        logits = self.decoder(z)
        return (x * logits - softplus(logits)).sum(-1)

    def values(self, x: Tensor, log_q: Tensor) -> Tensor:
        """f(z) for all images and all categories; the prior p(z) is uniform."""
        z = torch.eye(CATEGORIES, dtype=x.dtype)
        prior = -torch.tensor(CATEGORIES, dtype=x.dtype).log()
        return self.log_likelihood(x[:, None], z[None]) + prior - log_q

    def bound(self, x: Tensor) -> Tensor:
        """The bound of each image, exactly: the sum over all categories."""
        log_q = self.encoder(x).log_softmax(1)
        return (log_q.exp() * self.values(x, log_q)).sum(1)


class Measured(NamedTuple):
    """An estimator of the gradient for all images, in units of the exact gradient's squared norm."""

    name: str
    evaluations: str
    bias: float  # ‖mean estimate − exact gradient‖²
    noise_of_bias: float  # what that would be without any bias, because the mean is over finitely many estimates
    variance: float  # of one estimate: the sum over all logits


def measure(name: str, evaluations: str, estimates: Tensor, exact: Tensor) -> Measured:
    """``estimates`` are of the shape [estimate, image, category]."""
    unit, variance = exact.square().sum(), estimates.var(0).sum()
    bias = (estimates.mean(0) - exact).square().sum()
    return Measured(
        name, evaluations, float(bias / unit), float(variance / len(estimates) / unit), float(variance / unit)
    )


def relaxed_gradients(vae: VAE, x: Tensor, logits: Tensor, temperature: float, count: int, seed: int) -> Tensor:
    """Gumbel-softmax: z = softmax((logits + Gumbel noise) / temperature), and back-propagation through it.

    ln p(z) − ln q(z | x) is averaged exactly, as is usual; only ln p(x | z) is relaxed.
    """
    generator = torch.Generator().manual_seed(seed)
    noise = -torch.rand(count, *logits.shape, generator=generator, dtype=x.dtype).log()
    repeated = logits.detach().repeat(count, 1, 1).requires_grad_()
    z = ((repeated - noise.log()) / temperature).softmax(-1)
    log_q = repeated.log_softmax(-1)
    total = vae.log_likelihood(x, z).sum() - (log_q.exp() * log_q).sum()
    return torch.autograd.grad(total, repeated)[0]


def compare(vae: VAE, x: Tensor, count: int) -> list[Measured]:
    logits = vae.encoder(x).detach().requires_grad_()
    log_q = logits.log_softmax(1)
    (exact,) = torch.autograd.grad((log_q.exp() * vae.values(x, log_q)).sum(), logits)

    # f depends on the logits itself, through −ln q. Its own gradient may be left out, because E_q[∇ ln q] = 0.
    values = vae.values(x, log_q).detach()
    many = logits.detach().repeat(count, 1)  # rows are independent: as many estimates as we like in one call

    def reward(actions: Tensor, rows: Tensor) -> Tensor:
        return values[rows % IMAGES, actions]

    measured = []
    for name, evaluations in ESTIMATORS.items():
        estimates = estimate_gradient(many, reward, name, seed=1).view(count, IMAGES, CATEGORIES)
        measured.append(measure(name, evaluations, estimates, exact))
    for temperature in TEMPERATURES:
        estimates = relaxed_gradients(vae, x, logits, temperature, 10 * count, seed=2)  # cheap: one pass for all
        measured.append(measure(f"Gumbel-softmax {temperature:g}", "1, soft", estimates, exact))
    return measured


def draw(measured: list[Measured], path: Path) -> None:
    """A row for each estimator: how much one estimate scatters, and how far the mean of all is from the exact one."""
    figure, axes = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
    least = 1e-6  # what is exact would be far outside on the left

    def points(values: list[float], marker: str, colour: str, label: str, size: int) -> None:
        axes.plot([max(value, least) for value in values], rows, marker, color=colour, label=label, markersize=size)

    rows = range(len(measured))
    points([one.variance for one in measured], "o", "#1f5f8b", "variance of one estimate", 8)
    points([one.bias for one in measured], "D", "#b0413e", "squared distance of the mean", 7)
    points([one.noise_of_bias for one in measured], "|", "black", "what chance explains of it", 15)
    axes.set_yticks(rows, [one.name for one in measured])
    axes.invert_yaxis()
    axes.set(xscale="log", xlim=(least / 2, None), xlabel="relative to the squared norm of the exact gradient")
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(quick: bool = False, out: Path = Path("discrete_vae.png")) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    vae = VAE().double()
    # Images of some kinds, with a tenth of the pixels flipped.
    kinds = torch.rand(CATEGORIES // 2, PIXELS) < 0.5
    x = (kinds[torch.arange(IMAGES) % len(kinds)] ^ (torch.rand(IMAGES, PIXELS) < 0.1)).double()

    # Trained a little, by the exact gradient: neither at its random start nor when everything is decided.
    optimizer = torch.optim.Adam(vae.parameters(), lr=0.01)
    for _ in range(25):
        optimizer.zero_grad()
        (-vae.bound(x).mean()).backward()
        optimizer.step()
    with torch.no_grad():
        bound, surest = vae.bound(x).mean().item(), vae.encoder(x).softmax(1).amax(1).mean().item()
    print(f"bound {bound:.2f} nats; the most probable category has {surest:.0%} on average\n")

    count = 200 if quick else 1_000
    measured = compare(vae, x, count)
    print(f"{'estimator':20} {'values of f':16} {'squared bias':>14} {'(its noise)':>12} {'variance':>10}")
    for one in measured:
        numbers = f"{one.bias:14.2e} {one.noise_of_bias:12.0e} {one.variance:10.3g}"
        biased = "  biased" if one.bias > 3 * one.noise_of_bias + 1e-12 else ""
        print(f"{one.name:20} {one.evaluations:16} {numbers}{biased}")
    print(f"\nall relative to ‖exact gradient‖², from {count:,} estimates each (of Gumbel-softmax ten times as many)")
    draw(measured, out)
    print(f"figure: {out}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few estimates: to see that it runs")
    parser.add_argument("--out", type=Path, default=Path("discrete_vae.png"), help="file of the figure")
    main(**vars(parser.parse_args()))
