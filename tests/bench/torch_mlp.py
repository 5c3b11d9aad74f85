"""The network that bench_mlp measures, in PyTorch: three linear layers of 4096 with ReLU between,
mean squared error, fused SGD. Prints bench_mlp's rows under the same names, eager and, with -graph
after the name, with the whole step captured in a CUDA graph; then the rows of torch-compile, whose
forward and backward are torch.compile's. There is no mlp-norm.

usage: torch_mlp.py [--cpu]"""
import sys

import torch

from torch_rows import CPU, DEVICE, begin, captured, take_turns

WIDTH, BATCHES, SECONDS = (64, (32, 33), 0) if CPU else (4096, (512, 513, 256, 128), 4)
FORMS = "scaler", "autocast", "tf32", "fp32"


def trainer(form, batch, compiled=False):
    """One step of it, as a function."""
    torch.manual_seed(1)
    layers = [torch.nn.Linear(WIDTH, WIDTH, device=DEVICE) for _ in range(3)]
    net = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.ReLU(), layers[2])
    x, target = torch.randn(2, batch, WIDTH, device=DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, fused=True)
    scaler = torch.amp.GradScaler(DEVICE, enabled=form == "scaler")
    halves = form in ("scaler", "autocast")

    def loss_of(x, target):
        return torch.nn.functional.mse_loss(net(x), target)

    forward = torch.compile(loss_of, dynamic=False) if compiled else loss_of

    def step():
        torch.backends.cuda.matmul.allow_tf32 = form == "tf32"
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, dtype=torch.float16, enabled=halves):
            loss = forward(x, target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return step


def check(batch):
    """All forms begin with fp32's loss, and learn."""
    exact = trainer("fp32", batch)().item()
    for form in FORMS:
        step = trainer(form, batch)
        first, last = step().item(), [step().item() for _ in range(20)][-1]
        if abs(first - exact) > 0.001 * exact or last > first:
            sys.exit(f"torch_mlp.py: {form} begins at {first} and ends at {last}, "
                     f"fp32 begins at {exact}")


def main():
    if len(sys.argv) > (2 if CPU else 1):
        sys.exit("usage: torch_mlp.py [--cpu]")
    begin()
    check(BATCHES[0])
    for batch in BATCHES:
        turns = []
        for form in FORMS:
            step = trainer(form, batch)
            turns.append(("torch", f"mlp-{form}", lambda step=step: step))
            turns.append(("torch", f"mlp-{form}-graph", lambda step=step: captured(step)))
        take_turns(turns, SECONDS, batch, 6)
    for batch in BATCHES[:1] if CPU else BATCHES:  # last, since compiling takes its time
        take_turns([("torch-compile", f"mlp-{form}", lambda form=form: trainer(form, batch, True))
                    for form in FORMS[:2]], SECONDS, batch, 6)


main()
