/* peers_dnnl.cpp - products of bf16 by amp.h beside oneDNN's, one thread each: medians of runs in
   turns. Where the first product takes oneDNN 20 times as long, that is all that is said.
   usage: peers_dnnl [rounds] */

#define AMP_IMPLEMENTATION
#include "amp.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <dnnl.hpp>
#include <vector>

static double now() {
    using namespace std::chrono;
    return duration<double>(steady_clock::now().time_since_epoch()).count();
}

static double quantile(std::vector<double> x, double q) {
    std::sort(x.begin(), x.end());
    return x[(std::size_t)(q * (double)(x.size() - 1) + 0.5)];
}

struct shape { int ta, tb, m, n, k; };

int main(int argc, char **argv) {
    static const shape shapes[] = {{0, 0, 512, 512, 512},    {0, 0, 1024, 1024, 1024},
                                   {0, 0, 2048, 2048, 2048}, {0, 0, 256, 3072, 768},
                                   {0, 0, 64, 512, 784},     {1, 0, 784, 512, 64},
                                   {1, 0, 768, 768, 1024},   {0, 1, 1024, 768, 768}};
    const int          rounds = argc > 1 ? std::atoi(argv[1]) : 9;
    const std::size_t  room   = 2048 * 2048;
    std::vector<uint16_t> a(room), b(room), c(room), d(room);
    dnnl::engine          cpu(dnnl::engine::kind::cpu, 0);
    dnnl::stream          stream(cpu);
    using desc = dnnl::memory::desc;
    using dims = dnnl::memory::dims;
    for (std::size_t i = 0; i < room; i++) {
        a[i] = (uint16_t)(0x3e00u + (i * 2654435761u >> 8 & 0x81ffu));
        b[i] = (uint16_t)(0x3e00u + (i * 2246822519u >> 8 & 0x81ffu));
    }
    for (const shape &s : shapes) {
        const auto half = dnnl::memory::data_type::bf16;
        desc da({s.m, s.k}, half, s.ta ? dims{1, s.m} : dims{s.k, 1});
        desc db({s.k, s.n}, half, s.tb ? dims{1, s.k} : dims{s.n, 1});
        desc dc({s.m, s.n}, half, dims{s.n, 1});
        dnnl::matmul product(
            dnnl::matmul::primitive_desc(dnnl::matmul::desc(da, db, dc), cpu));
        dnnl::memory ma(da, cpu, a.data()), mb(db, cpu, b.data()), mc(dc, cpu, d.data());
        amp_gemm_args g = {};
        g.trans_a = s.ta, g.trans_b = s.tb;
        g.m = (size_t)s.m, g.n = (size_t)s.n, g.k = (size_t)s.k;
        g.a = a.data(), g.b = b.data(), g.c = c.data();
        g.a_type = g.b_type = g.c_type = AMP_BF16;
        const auto ours = [&] { amp_gemm(NULL, &g); };
        const auto theirs = [&] {
            product.execute(stream, {{DNNL_ARG_SRC, ma}, {DNNL_ARG_WEIGHTS, mb},
                                     {DNNL_ARG_DST, mc}});
            stream.wait();
        };
        const double        work = 2.0 * s.m * s.n * s.k;
        const int           reps = (int)(4e9 / work) + 1;
        std::vector<double> x, y, ratio;
        double              first = 1e9, other = 1e9;
        for (int q = 0; q < 2; q++) { /* the first one touches memory */
            double start = now();
            ours();
            first = std::min(first, now() - start);
            start = now();
            theirs();
            other = std::min(other, now() - start);
        }
        if (other > 20 * first) {
            std::printf("gemm bf16 / oneDNN  %dx%dx%d  %.1f GFLOP/s  oneDNN %.1f: over 20 times slower, other "
                        "sizes left out\n", s.m, s.n, s.k, work / first * 1e-9, work / other * 1e-9);
            break;
        }
        for (int r = 0; r < rounds; r++) {
            double start;
            ours();
            start = now();
            for (int q = 0; q < reps; q++) ours();
            x.push_back((now() - start) / reps);
            theirs();
            start = now();
            for (int q = 0; q < reps; q++) theirs();
            y.push_back((now() - start) / reps);
            ratio.push_back(y.back() / x.back());
        }
        std::printf("gemm bf16 / oneDNN  %c%c %dx%dx%d  %.1f GFLOP/s  oneDNN %.1f  ratio=%.2f "
                    "[%.2f %.2f]\n", s.ta ? 'T' : 'N', s.tb ? 'T' : 'N', s.m, s.n, s.k,
                    work / quantile(x, 0.5) * 1e-9, work / quantile(y, 0.5) * 1e-9,
                    quantile(ratio, 0.5), quantile(ratio, 0.25), quantile(ratio, 0.75));
        std::fflush(stdout);
    }
    return 0;
}
