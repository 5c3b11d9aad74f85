"""What PyTorch needs for the step that bench_cuda measures: GradScaler and fused AdamW on fp32 masters
whose fp16 gradients and fp16 model copies exist, with and without clipping. Prints medians in ms."""
import statistics
import sys

import torch

ROUNDS = 21


def step_time(n, tensors, clip):
    part = n // tensors
    weights = [torch.full((part,), 0.01, device="cuda", requires_grad=True) for _ in range(tensors)]
    halves = [w.detach().half() for w in weights]
    grads = [torch.full((part,), 0.06, device="cuda", dtype=torch.float16) for _ in weights]
    for w in weights:
        w.grad = torch.zeros_like(w)
    optimizer = torch.optim.AdamW(weights, lr=1e-4, fused=True)
    scaler = torch.amp.GradScaler("cuda")
    scaler.scale(torch.ones(1, device="cuda"))

    def step():
        torch._foreach_copy_([w.grad for w in weights], grads)
        if clip:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
        scaler.step(optimizer)
        scaler.update()
        torch._foreach_copy_(halves, [w.detach() for w in weights])

    times = []
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for r in range(ROUNDS + 2):
        begin.record()
        for _ in range(5):
            step()
        end.record()
        end.synchronize()
        if r > 1:
            times.append(begin.elapsed_time(end) / 5)
    return statistics.median(times)


print("# torch", torch.__version__, torch.cuda.get_device_name(0))
most = int(float(sys.argv[1])) if len(sys.argv) > 1 else 1_000_000_000
for n, tensors in [(1_000_000, 20), (10_000_000, 50), (100_000_000, 148), (124_475_904, 148),
                   (1_000_000_000, 580)]:
    for clip in (False, True):
        if n <= most:
            print(f"{n:10d} {tensors:7d} {'yes' if clip else 'no':>5} "
                  f"{step_time(n, tensors, clip):9.4f}", flush=True)
