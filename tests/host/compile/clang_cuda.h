/* clang_cuda.h - what CUDA by clang lacks of NVIDIA's sm_32_intrinsics.hpp and amp_kernels.cu uses: loads and
   stores of data that is not read again soon. */

static __device__ inline unsigned __ldcs(const unsigned *p) {
    unsigned u;
    asm volatile("ld.global.cs.u32 %0, [%1];" : "=r"(u) : "l"(p));
    return u;
}

static __device__ inline uint2 __ldcs(const uint2 *p) {
    uint2 u;
    asm volatile("ld.global.cs.v2.u32 {%0,%1}, [%2];" : "=r"(u.x), "=r"(u.y) : "l"(p));
    return u;
}

static __device__ inline uint4 __ldcs(const uint4 *p) {
    uint4 u;
    asm volatile("ld.global.cs.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(u.x), "=r"(u.y), "=r"(u.z), "=r"(u.w)
                 : "l"(p));
    return u;
}

static __device__ inline void __stcs(unsigned *p, unsigned u) {
    asm volatile("st.global.cs.u32 [%0], %1;" : : "l"(p), "r"(u) : "memory");
}

static __device__ inline void __stcs(uint2 *p, uint2 u) {
    asm volatile("st.global.cs.v2.u32 [%0], {%1,%2};" : : "l"(p), "r"(u.x), "r"(u.y) : "memory");
}

static __device__ inline void __stcs(uint4 *p, uint4 u) {
    asm volatile("st.global.cs.v4.u32 [%0], {%1,%2,%3,%4};"
                 :
                 : "l"(p), "r"(u.x), "r"(u.y), "r"(u.z), "r"(u.w)
                 : "memory");
}
