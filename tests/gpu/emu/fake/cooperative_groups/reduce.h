/* cooperative_groups/reduce.h - over a tile, by halves, as NVIDIA's header adds floats */

#ifndef FAKE_COOPERATIVE_GROUPS_REDUCE_H
#define FAKE_COOPERATIVE_GROUPS_REDUCE_H

#include "../cooperative_groups.h"

namespace cooperative_groups {

template <class T> struct plus { T operator()(T a, T b) const { return a + b; } };
template <class T> struct less { T operator()(T a, T b) const { return b < a ? b : a; } };
template <class T> struct greater { T operator()(T a, T b) const { return a < b ? b : a; } };

template <class Tile, class T, class F>
T reduce(const Tile &tile, T v, F f, int line = __builtin_LINE()) {
    for (unsigned half = tile.size() / 2; half > 0; half /= 2)
        v = f(v, tile.shfl_xor(v, half, line));
    return v;
}

} // namespace cooperative_groups
#endif
