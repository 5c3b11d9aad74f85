# kinds.sh - the ways to build a program with the emulator. `kind NAME` sets compiler, the flags of
# the program and its kernels (with) and those of the emulator (emulator); `object` makes an object,
# `plain` one of CUDA as its users write it.
# usage: kinds.sh NAME DIR      leaves DIR/emu.o and DIR/kernels.o, empty if that is not possible;
# what the compiler says stays beside them. make does so once; the scripts take what they find.
emu=${emu:-tests/gpu/emu}
fake=-I$emu/fake
flags="-std=c++14 -ffp-contract=off -fno-strict-aliasing -Wno-unknown-pragmas -I. -I$emu"
linked='-DAMP_CORE_INCLUDED -DAMP_IMPLEMENTATION_INCLUDED' # with an amp.o, for which see Makefile
front="-include $emu/cuda_emu.h -x c++"
# NULL is an address that is not there: no need to look at every pointer twice.
sanitizers='-fsanitize=address,undefined -fno-sanitize=null -fno-sanitize-recover=undefined
            -DEMU_PLAIN_SHARED'

kind() {
    compiler=${CXX:-c++} with=-O1 emulator=-O2
    case $1 in
    clang) compiler=clang++ with=-O2 ;;
    sanitize) with="-Og -g1 $sanitizers" emulator="-Og -g1 $sanitizers -DEMU_ASAN" ;;
    races) with='-Og -g1 -fsanitize=thread' emulator='-O1 -g -DEMU_TSAN' ;;
    esac
}
object() { # object FILE COMPILER [FLAGS...] SOURCE: with the words of the compiler in FILE.log
    file=$1 with_compiler=$2
    shift 2
    $with_compiler $flags "$@" -o "$file" > "$file.log" 2>&1
}

plain() { # plain FILE COMPILER SOURCE [FLAGS...]: likewise, of plain CUDA, with its <<<>>>
    file=$1 with_compiler=$2 cu=$3
    shift 3
    { $with_compiler $flags "$@" $front -E "$cu" -o "$file.ii" &&
        awk -f $emu/plain.awk "$file.ii" > "$file.cpp" &&
        $with_compiler $flags "$@" -x c++-cpp-output -c "$file.cpp" -o "$file"; } > "$file.log" 2>&1
}

case ${0##*/} in kinds.sh)
    kind "$1"
    mkdir -p "$2"
    object "$2/emu.o" "$compiler" $fake -w $emulator -c $emu/cuda_emu.cpp || : > "$2/emu.o"
    object "$2/kernels.o" "$compiler" $fake -w $with -DAMPI_GRIDS $front -c amp_kernels.cu ||
        : > "$2/kernels.o" ;;
esac
