/* device.h - what nvcc knows by itself, declared for a C++ compiler that only checks types.

   In front of a .cu it takes the place of the compiler, not of the toolkit: whatever the host calls
   comes from NVIDIA's headers or is missing. See tests/gpu/headers.sh. */

#ifndef DEVICE_H_INCLUDED
#define DEVICE_H_INCLUDED

#include <cuda_runtime.h>
#include <device_launch_parameters.h> /* threadIdx and its like */
#include <math.h>

#ifndef __launch_bounds__
#define __launch_bounds__(...)
#endif

void __syncthreads(void);
void __syncwarp(unsigned mask = 0xffffffffu);
int  __syncthreads_count(int predicate);
int  __popc(unsigned x);
int  __clz(int x);
unsigned __ballot_sync(unsigned mask, int predicate);
void __threadfence(void);

template <class T> T __shfl_sync(unsigned mask, T value, int lane, int width = 32);
template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32);
template <class T> T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32);

template <class T> T    __ldcg(const T *p);
template <class T> T    __ldcs(const T *p);
template <class T> void __stcs(T *p, T value);

int                atomicAdd(int *p, int v);
unsigned           atomicAdd(unsigned *p, unsigned v);
unsigned long long atomicAdd(unsigned long long *p, unsigned long long v);
float              atomicAdd(float *p, float v);
double             atomicAdd(double *p, double v);
unsigned           atomicOr(unsigned *p, unsigned v);
unsigned           atomicMax(unsigned *p, unsigned v);
unsigned long long atomicMax(unsigned long long *p, unsigned long long v);
unsigned           atomicInc(unsigned *p, unsigned v);

unsigned __byte_perm(unsigned x, unsigned y, unsigned selector);
unsigned __float_as_uint(float x);
float    __uint_as_float(unsigned u);
float    __fadd_rn(float a, float b);
float    __fsub_rn(float a, float b);
float    __fmul_rn(float a, float b);
float    cospif(float a);
double   __dadd_rn(double a, double b);

/* kernel<<<grid, block>>>(arguments), as tests/gpu/emu/plain.awk writes it */
struct emu_config { emu_config(dim3 grid, dim3 block, size_t shared = 0, cudaStream_t stream = 0); };
template <class... P> struct emu_call { void operator()(P... arguments) const; };
template <class... P> emu_call<P...> emu_typed(const emu_config &config, void (*kernel)(P...));
template <class T, class K>
auto emu_plain(T typed, K, const emu_config &config) -> decltype(typed(config)) {
    return typed(config);
}

extern "C" void cudaGraphSetConditional(unsigned long long handle, unsigned value);

#endif
