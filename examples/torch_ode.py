"""A neural ODE: the field of a spiral, learned through Runge-Kutta steps of fourth order.

The field is a small network; each step calls it four times, and plain PyTorch would hold what all these calls save.
Here `remat.scan` keeps a few states and recomputes the rest. Run it: python examples/torch_ode.py
"""

import time

import torch

import remat

STEPS, DT, SLOTS, ROUNDS = 80, 0.05, 16, 12


class Field(torch.nn.Module):
    """dx/dt as a function of x, by a network."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(2, 24), torch.nn.Tanh(), torch.nn.Linear(24, 2))

    def forward(self, x):
        """The speed at x."""
        return self.layers(x)


def spiral(x):
    """The field that is to be found: it turns and draws inwards."""
    return x @ torch.tensor([[-0.1, -1.0], [1.0, -0.1]])


def runge_kutta(field, x):
    """One step of fourth order."""
    a = field(x)
    b = field(x + 0.5 * DT * a)
    c = field(x + 0.5 * DT * b)
    d = field(x + DT * c)
    return x + DT / 6 * (a + 2 * b + 2 * c + d)


def path(field, start, loop=remat.scan, **budget):
    """Where the points are after each step."""

    def step(x, _):
        x = runge_kutta(field, x)
        return x, x

    return loop(step, start, length=STEPS, **budget)[1]


def plain(step, x, length):
    ys = []
    for _ in range(length):
        x, y = step(x, None)
        ys.append(y)
    return x, torch.stack(ys)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    field, start = Field(), torch.randn(16, 2)
    with torch.no_grad():
        observed = path(spiral, start, slots=1)  # without a gradient to compute it is a plain loop

    def loss(**how):
        return torch.mean((path(field, start, **how) - observed) ** 2)

    expected = torch.autograd.grad(loss(loop=plain), field.parameters())
    gradients = torch.autograd.grad(loss(slots=SLOTS), field.parameters())
    worst = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(gradients, expected, strict=True))
    print(f"gradients of the plain loop and of {SLOTS} kept states agree to {worst:.1e}")
    assert worst < 1e-5

    plan = remat.plan(remat.Loop(STEPS), slots=SLOTS)
    print(f"{plan.forward_steps} step evaluations for each gradient of {STEPS} steps, {SLOTS} states kept")
    optimizer = torch.optim.Adam(field.parameters(), lr=0.05)
    began, values = time.perf_counter(), []
    for _ in range(ROUNDS):
        optimizer.zero_grad()
        value = loss(slots=SLOTS)
        value.backward()
        optimizer.step()
        values.append(value.item())
    seconds = (time.perf_counter() - began) / ROUNDS
    print(f"loss {values[0]:.4f} at first, {values[-1]:.4f} after {ROUNDS} gradients of {seconds:.2f} s each")
    assert values[-1] < 0.3 * values[0]


if __name__ == "__main__":
    main()
