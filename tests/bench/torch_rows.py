"""What torch_step.py and torch_mlp.py share: the rows of gpu.h, with turns as there.

With --cpu before other arguments everything is small and runs on the CPU, to see that it works;
graphs are refused there."""
import statistics
import sys
import time

import torch

CPU = sys.argv[1:2] == ["--cpu"]
DEVICE = "cpu" if CPU else "cuda"
ROUNDS, LEAST_ROUNDS, TIMES = (2, 1, 1) if CPU else (21, 5, 5)


def begin():
    """Say what is there, and let the clock rise, which takes an idle one its time."""
    print("# torch", torch.__version__, "cpu" if CPU else torch.cuda.get_device_name(0))
    print("name,what,n,tensors,unit,value,low,high", flush=True)
    start = time.monotonic()
    while not CPU and time.monotonic() - start < 0.5:
        torch.zeros(1 << 26, device=DEVICE)
        torch.cuda.synchronize()


def milliseconds(work):
    if CPU:
        start = time.perf_counter()
        work()
        return (time.perf_counter() - start) * 1e3
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(TIMES):
        work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / TIMES


def captured(work):
    if CPU:
        raise RuntimeError("no graphs on a CPU")
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


def take_turns(turns, most_seconds, n, tensors):
    """turns: (name, what, a function that makes what is measured). What PyTorch refuses becomes a
    comment."""
    made = []
    for name, what, make in turns:
        try:
            work = make()
            work()
            made.append((name, what, work, []))
        except Exception as error:  # of any part of PyTorch
            why = (str(error).splitlines() or [type(error).__name__])[0]
            print(f"# {name} refuses {what} of {n}: {why}", flush=True)
    start = time.monotonic()
    for r in range(-1, ROUNDS):
        for _, _, work, times in made:
            ms = milliseconds(work)
            if r >= 0:
                times.append(ms)
        if r + 1 >= LEAST_ROUNDS and time.monotonic() - start > most_seconds:
            break
    for name, what, _, times in made:
        low, middle, high = (statistics.quantiles(times, n=4, method="inclusive")
                             if len(times) > 1 else times * 3)
        print(f"{name},{what},{n},{tensors},ms,{middle:.5g},{low:.5g},{high:.5g}", flush=True)
