"""What PyTorch needs for the step that bench_cuda measures: GradScaler and fused AdamW on fp32
masters whose fp16 gradients and fp16 model copies exist. Prints bench_cuda's rows under its names:
step, graph (captured, capturable), both with and without clipping, and overflow, a step that is
skipped. What this PyTorch refuses becomes a comment.

usage: torch_step.py [largest number of parameters]"""
import statistics
import sys
import time

import torch

ROUNDS, LEAST_ROUNDS, TIMES, SECONDS = 21, 3, 5, 1.2  # seconds for one row
SIZES = [(124_475_904, 148), (1_000_000, 20), (10_000_000, 10_000), (10_000_000, 50),
         (1_000_000_000, 580)]


def measure(work):
    """Milliseconds: median and quartiles."""
    times, start = [], time.monotonic()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for r in range(-2, ROUNDS):
        begin.record()
        for _ in range(TIMES):
            work()
        end.record()
        end.synchronize()
        if r >= 0:
            times.append(begin.elapsed_time(end) / TIMES)
        if r >= LEAST_ROUNDS and time.monotonic() - start > SECONDS:
            break
    low, middle, high = statistics.quantiles(times, n=4, method="inclusive")
    return middle, low, high


def captured(work):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def realistic(count, dtype, factor):
    """Of both signs, one in eight zero, as is one row of 512 in four."""
    x = torch.randn(count, device="cuda") * factor
    x *= torch.rand(count, device="cuda") > 0.125
    rows = x[: count // 512 * 512].view(-1, 512)
    rows *= torch.rand(rows.shape[0], 1, device="cuda") > 0.25
    return x.to(dtype)


def model(n, tensors):
    """The step, as a function of whether to clip, and the gradients it reads."""
    part = n // tensors
    weights = [realistic(part, torch.float32, 0.02).requires_grad_() for _ in range(tensors)]
    halves = [w.detach().half() for w in weights]
    grads = [realistic(part, torch.float16, 0.06) for _ in range(tensors)]
    for w in weights:
        w.grad = torch.zeros_like(w)
    optimizer = torch.optim.AdamW(weights, lr=1e-4, fused=True, capturable=True)
    scaler = torch.amp.GradScaler("cuda")
    scaler.scale(torch.ones(1, device="cuda"))
    wide, masters = [w.grad for w in weights], [w.detach() for w in weights]

    def step(clip):
        torch._foreach_copy_(wide, grads)
        if clip:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
        scaler.step(optimizer)
        scaler.update()
        torch._foreach_copy_(halves, masters)

    return step, grads


def rows(n, tensors):
    step, grads = model(n, tensors)

    def measured(what, make):
        try:
            values = ",".join(f"{x:.5g}" for x in measure(make()))
            print(f"torch,{what},{n},{tensors},ms,{values}", flush=True)
        except RuntimeError as error:
            print(f"# torch refuses {what} of {n}: {str(error).splitlines()[0]}", flush=True)

    for clip, name in ((False, ""), (True, "-clip")):
        measured("step" + name, lambda: lambda: step(clip))
        measured("graph" + name, lambda: captured(lambda: step(clip)))
    grads[0][0] = float("inf")
    measured("overflow", lambda: lambda: step(False))


def main():
    most = int(float(sys.argv[1])) if len(sys.argv) > 1 else 1_000_000_000
    print("# torch", torch.__version__, torch.cuda.get_device_name(0))
    print("name,what,n,tensors,unit,value,low,high")
    spin, start = torch.zeros(1 << 26, device="cuda"), time.monotonic()
    while time.monotonic() - start < 0.5:  # a clock that was idle takes its time to rise
        spin.zero_()
        torch.cuda.synchronize()
    del spin
    for n, tensors in SIZES:
        if n > most:
            continue
        try:
            rows(n // tensors * tensors, tensors)
        except torch.cuda.OutOfMemoryError:
            print(f"# no memory for {n} parameters", flush=True)
        torch.cuda.empty_cache()


main()
