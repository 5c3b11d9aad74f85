"""How long PyTorch takes for the step that bench_cuda measures: GradScaler and fused AdamW on fp32
masters that have fp16 gradients and fp16 model copies. Prints bench_cuda's rows under the same
names: step and graph (captured, capturable), both with and without clipping; overflow, a skipped
step; and copy, which should equal bench_cuda's if the machine has not changed. torch-foreach has the
steps of the optimizer that is not fused, torch-compile those of torch.compile. For both GradScaler
waits to see whether there was an inf.

usage: torch_step.py [--cpu] [largest number of parameters]"""
import sys

import torch

from torch_rows import CPU, DEVICE, begin, captured, take_turns

SECONDS = 4  # for one model
SIZES = [(124_468_000, 148), (1_000_000, 20), (10_000_000, 10_000), (10_000_000, 50),
         (999_920_000, 580)]
if CPU:
    SIZES = [(20_000, 20), (5_000, 100)]


def realistic(count, dtype, factor):
    """Of both signs, one in eight zero, as is one row of 512 in four."""
    x = torch.randn(count, device=DEVICE) * factor
    x *= torch.rand(count, device=DEVICE) > 0.125
    rows = x[: count // 512 * 512].view(-1, 512)
    rows *= torch.rand(rows.shape[0], 1, device=DEVICE) > 0.25
    return x.to(dtype)


def model(n, tensors, kind):
    """The step, as a function of whether to clip; the gradients it reads; the weights and the
    scaler."""
    part = n // tensors
    weights = [realistic(part, torch.float32, 0.02).requires_grad_() for _ in range(tensors)]
    halves = [w.detach().half() for w in weights]
    grads = [realistic(part, torch.float16, 0.06) for _ in range(tensors)]
    for w in weights:
        w.grad = torch.zeros_like(w)
    optimizer = torch.optim.AdamW(weights, lr=1e-4, fused=kind == "fused",
                                  foreach=kind != "fused", capturable=not CPU)
    if kind == "compile":
        optimizer.step = torch.compile(optimizer.step)
    scaler = torch.amp.GradScaler(DEVICE)
    scaler.scale(torch.ones(1, device=DEVICE))
    wide, masters = [w.grad for w in weights], [w.detach() for w in weights]

    def step(clip):
        torch._foreach_copy_(wide, grads)
        if clip:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
        scaler.step(optimizer)
        scaler.update()
        torch._foreach_copy_(halves, masters)

    return step, grads, masters, scaler


def rows(n, tensors):
    step, grads, masters, scaler = model(n, tensors, "fused")
    source = torch.randint(256, (15 * n,), dtype=torch.uint8, device=DEVICE)
    target = torch.zeros_like(source)
    take_turns([("torch", "step", lambda: lambda: step(False)),
                ("torch", "graph", lambda: captured(lambda: step(False))),
                ("torch", "step-clip", lambda: lambda: step(True)),
                ("torch", "graph-clip", lambda: captured(lambda: step(True))),
                ("torch", "copy", lambda: lambda: target.copy_(source))], SECONDS, n, tensors)
    before, scale = masters[0].clone(), scaler.get_scale()
    grads[0][0] = float("inf")
    take_turns([("torch", "overflow", lambda: lambda: step(False))], 1, n, tensors)
    if not torch.equal(before, masters[0]) or scaler.get_scale() >= scale:
        sys.exit("torch_step.py: a step with an inf was not skipped")


def rows_of(kind, n, tensors):
    step = model(n, tensors, kind)[0]
    take_turns([(f"torch-{kind}", "step", lambda: lambda: step(False)),
                (f"torch-{kind}", "step-clip", lambda: lambda: step(True))], 2, n, tensors)


def main():
    numbers = sys.argv[2 if CPU else 1:]
    most = int(float(numbers[0])) if numbers else 1_000_000_000
    begin()
    sizes = [size for size in SIZES if size[0] <= most]
    measured = [(rows, size) for size in sizes]
    measured += [(lambda *size, kind=kind: rows_of(kind, *size), size)  # compiling takes its time
                 for kind in ("foreach", "compile") for size in sizes[:2]]
    for measure, size in measured:
        try:
            measure(*size)
        except RuntimeError as error:
            print(f"# torch refuses {size[0]} parameters: {str(error).splitlines()[0]}", flush=True)
        if not CPU:
            torch.cuda.empty_cache()


main()
