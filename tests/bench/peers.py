# Products of amp.h beside torch (oneDNN), one thread each: medians of runs in turns. One product of each type is timed first.
# If torch takes SLOW times as long (fp16 on processors without instructions for it), that is the row, and the type is not
# measured further: larger products would take minutes.
# usage: peers.py LIBRARY [rounds]    LIBRARY: amp.h compiled as a shared object
import ctypes, sys, time
import torch

torch.set_num_threads(1)
amp = ctypes.CDLL(sys.argv[1])
rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 9
SLOW = 20
size, void, real, whole = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_float, ctypes.c_int


class Args(ctypes.Structure):  # amp_gemm_args
    _fields_ = ([(name, whole) for name in ("trans_a", "trans_b")] + [(name, size) for name in "mnk"] +
                [("alpha", real), ("beta", real)] + [(name, void) for name in "abc"] +
                [(name, whole) for name in ("a_type", "b_type", "c_type")] +
                [(name, size) for name in ("lda", "ldb", "ldc", "count", "stride_a", "stride_b", "stride_c")] +
                [("bias", void), ("bias_type", whole), ("activation", whole), ("tf32", whole), ("compute", whole)])


amp.amp_gemm.argtypes = [void, ctypes.POINTER(Args)]
types = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}


def once(run):
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def timed(run, reps):
    run()
    start = time.perf_counter()
    for _ in range(reps):
        run()
    return (time.perf_counter() - start) / reps


def quantile(values, q):
    return sorted(values)[int(q * (len(values) - 1) + 0.5)]


for dtype in (torch.bfloat16, torch.float16):
    for ta, tb, m, n, k in ((0, 0, 512, 512, 512), (0, 0, 1024, 1024, 1024),
                            (0, 0, 2048, 2048, 2048), (0, 0, 256, 3072, 768),
                            (0, 0, 64, 512, 784), (1, 0, 784, 512, 64), (1, 0, 768, 768, 1024),
                            (0, 1, 1024, 768, 768)):
        a = torch.randn(*((k, m) if ta else (m, k))).to(dtype)
        b = torch.randn(*((n, k) if tb else (k, n))).to(dtype)
        c, d = torch.empty(m, n, dtype=dtype), torch.empty(m, n, dtype=dtype)
        at, bt = (a.t() if ta else a), (b.t() if tb else b)
        pa, pb, pc, t = a.data_ptr(), b.data_ptr(), c.data_ptr(), types[dtype]
        args = Args(trans_a=ta, trans_b=tb, m=m, n=n, k=k, a=pa, b=pb, c=pc, a_type=t, b_type=t, c_type=t)

        def ours():
            amp.amp_gemm(None, args)

        def theirs():
            torch.mm(at, bt, out=d)

        work = 2.0 * m * n * k
        name = "gemm %s / torch  %s%s %dx%dx%d" % (str(dtype)[6:], "NT"[ta], "NT"[tb], m, n, k)
        first, other = (min(once(run), once(run)) for run in (ours, theirs))  # the first one touches memory
        if other > SLOW * first:
            print("%s  %.1f GFLOP/s  torch %.1f: over %d times slower, other sizes left out" % (
                name, work / first * 1e-9, work / other * 1e-9, SLOW), flush=True)
            break
        reps = int(4e9 / work) + 1
        x, y = [], []
        for _ in range(rounds):
            x.append(timed(ours, reps))
            y.append(timed(theirs, reps))
        ratio = [q / p for p, q in zip(x, y)]
        print("%s  %.1f GFLOP/s  torch %.1f  ratio=%.2f [%.2f %.2f]" % (
            name, work / quantile(x, 0.5) * 1e-9, work / quantile(y, 0.5) * 1e-9, quantile(ratio, 0.5),
            quantile(ratio, 0.25), quantile(ratio, 0.75)), flush=True)
