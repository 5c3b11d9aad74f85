/* cooperative_groups.h - of a block and of tiles of a warp, on the emulator's barriers and shuffles */

#ifndef FAKE_COOPERATIVE_GROUPS_H
#define FAKE_COOPERATIVE_GROUPS_H

namespace cooperative_groups {

struct thread_block {
    static unsigned thread_rank() {
        return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    }
    static unsigned size() { return blockDim.x * blockDim.y * blockDim.z; }
    static unsigned num_threads() { return size(); }
    static dim3     group_index() { return dim3(blockIdx.x, blockIdx.y, blockIdx.z); }
    static dim3     thread_index() { return dim3(threadIdx.x, threadIdx.y, threadIdx.z); }
    static void     sync(int line = __builtin_LINE()) { __syncthreads(line); }
};
static inline thread_block this_thread_block() { return thread_block(); }

/* The caller's line tells one collective from another. */
template <unsigned N, class Parent = thread_block> struct thread_block_tile {
    static_assert(N - 1 < 32 && (N & (N - 1)) == 0, "a tile of a warp");
    static unsigned mask() {
        return 0xffffffffu >> (32 - N) << (thread_block::thread_rank() % 32 & ~(N - 1));
    }
    static unsigned thread_rank() { return thread_block::thread_rank() % N; }
    static unsigned size() { return N; }
    static unsigned num_threads() { return N; }
    static unsigned meta_group_size() { return (thread_block::size() + N - 1) / N; }
    static unsigned meta_group_rank() { return thread_block::thread_rank() / N; }
    static void     sync(int line = __builtin_LINE()) { __syncwarp(mask(), line); }
    template <class T> static T shfl(T v, int rank, int line = __builtin_LINE()) {
        return __shfl_sync(mask(), v, rank, N, line);
    }
    template <class T> static T shfl_up(T v, unsigned by, int line = __builtin_LINE()) {
        return __shfl_up_sync(mask(), v, by, N, line);
    }
    template <class T> static T shfl_down(T v, unsigned by, int line = __builtin_LINE()) {
        return __shfl_down_sync(mask(), v, by, N, line);
    }
    template <class T> static T shfl_xor(T v, unsigned bits, int line = __builtin_LINE()) {
        return __shfl_xor_sync(mask(), v, (int)bits, N, line);
    }
    static int any(int p, int line = __builtin_LINE()) { return __any_sync(mask(), p, line); }
    static int all(int p, int line = __builtin_LINE()) { return __all_sync(mask(), p, line); }
    static unsigned ballot(int p, int line = __builtin_LINE()) {
        return __ballot_sync(mask(), p, line) >> (thread_block::thread_rank() % 32 & ~(N - 1));
    }
};
template <unsigned N, class Parent>
thread_block_tile<N, Parent> tiled_partition(const Parent &) {
    return thread_block_tile<N, Parent>();
}

} // namespace cooperative_groups
#endif
