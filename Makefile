# amp.h: automatic mixed precision for training loops in C and CUDA.
# Nothing needs to be built to use the library: copy amp.h. This file runs the examples and tests.

CC     ?= cc
CXX    ?= c++
CLANG  ?= clang
CFLAGS ?= -O3
BUILD  ?= build
JOBS   ?= 2
HOURS  ?= 8
PREFIX ?= /usr/local
V      ?= 0

WARN := -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wcast-qual -Wcast-align \
        -Wundef -Wpointer-arith -Wwrite-strings -Wdouble-promotion -Wformat=2 -Wvla \
        -Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition

Q := $(if $(filter 1,$(V)),,@)

EXAMPLES := wrap_step pitfalls which_tensor recipes autocast_ops train
TESTS    := numbers scaler optimizer alloc gemm tiles policy cache state recipes bits

# How each test is built. The numbers test goes through all 2^32 floats in the first two, through a
# sample in the others. aarch64 has NEON, s390x the other byte order; both run under qemu.
CONFIGS    := o2 ofast clang clang-ofast sanitize aarch64 s390x
CC_o2          = $(CC)
CC_ofast       = $(CC)
CC_clang       = $(CLANG)
CC_clang-ofast = $(CLANG)
CC_sanitize    = $(CC)
CC_aarch64    := aarch64-linux-gnu-gcc
CC_s390x      := s390x-linux-gnu-gcc
FLAGS_o2          := -O2
FLAGS_ofast       := -Ofast
FLAGS_clang       := -O2
FLAGS_clang-ofast := -Ofast -march=native
FLAGS_sanitize    := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all
FLAGS_aarch64     := -O2 -static
FLAGS_s390x       := -O2 -static
RUN_aarch64       := AMP_QUICK=1 RUNNER=qemu-aarch64
RUN_s390x         := AMP_QUICK=1 RUNNER=qemu-s390x
RUN_clang         := AMP_QUICK=1
RUN_clang-ofast   := AMP_QUICK=1
RUN_sanitize      := AMP_QUICK=1

SUPPORT := tests/test.h tests/fp.h tests/posix.h tests/gemm_ex.h tests/gemm_bits.h tests/tiles.h \
           tests/one.sh tests/golden/scaler_traces.txt amp.h

LOGS := $(BUILD)/tests/self.log $(BUILD)/tests/gpu_self.log $(BUILD)/tests/headers.log \
        $(BUILD)/tests/compile.log $(BUILD)/tests/bits.log $(BUILD)/tests/examples.log \
        $(BUILD)/tests/install.log \
        $(BUILD)/tests/emu.log $(BUILD)/tests/cuda.log $(BUILD)/tests/nvcc.log \
        $(BUILD)/tests/examples_cuda.log $(BUILD)/tests/sgemm.log $(BUILD)/tests/fuzz.log \
        $(foreach c,$(CONFIGS),$(foreach t,$(TESTS),$(BUILD)/tests/$(c)/$(t).log))

# What takes too long for every change: make check runs it besides.
CHECK_LOGS := $(BUILD)/tests/fuzzing.log $(BUILD)/tests/mingw.log

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run test check soak cuda bench bench-peers logs examples install clean

VERSION = $(shell awk '/define AMP_VERSION_/ {printf "%s%s", dot, $$3; dot = "."}' amp.h)

help: ## show this help
	@echo "amp.h $(VERSION)"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' Makefile
	@echo "  CC CXX CLANG CFLAGS BUILD JOBS PREFIX V=1 may be set (make clean after a change)"

run: $(BUILD)/train ## train on real images in mixed precision: table, pictures, parity with fp32
	$(Q)$(BUILD)/train --out $(BUILD) $(ARGS)

examples: $(EXAMPLES:%=$(BUILD)/%) ## build all examples

# The last lines of logs, added up.
SUM = awk '/^[0-9]+ passed, [0-9]+ failed/ {p += $$1; f += $$3; s += $$5} \
    END {printf "%d passed, %d failed", p, f; if (s) printf ", %d skipped", s; print ""; \
         exit f != 0 || p == 0}'

test: ## run all tests; the last line is "N passed, N failed"
	$(Q)rm -rf $(BUILD)/tests
	$(Q)$(MAKE) --no-print-directory -j$(JOBS) logs
	$(Q)$(SUM) $(LOGS)

check: ## make test, and what takes longer: fuzzing for two minutes, MinGW and wine
	$(Q)$(MAKE) --no-print-directory test || true
	$(Q)$(MAKE) --no-print-directory $(CHECK_LOGS)
	$(Q)$(SUM) $(LOGS) $(CHECK_LOGS)

soak: ## fuzz for HOURS=8 on two cores; build/soak keeps the cases that were found
	$(Q)mkdir -p $(BUILD)/soak
	$(Q)export CC="$(CC)" CLANG="$(CLANG)"; seconds=$$(($(HOURS) * 1800)); \
	    NAMES="state policy" sh tests/fuzz.sh $$seconds $(BUILD)/soak & first=$$!; \
	    NAMES="calls env" sh tests/fuzz.sh $$seconds $(BUILD)/soak; second=$$?; \
	    wait $$first && exit $$second

cuda: ## compile kernels and CUDA examples with nvcc for every architecture; show registers
	$(Q)mkdir -p $(BUILD)/cuda
	$(Q)sh tests/nvcc.sh $(BUILD)/cuda
	$(Q)CXX="$(CXX)" sh tests/headers.sh $(ARGS) $(BUILD)/cuda/headers

bench: $(BUILD)/bench ## measure the CPU functions beside memory, fp32, plain loops and one thread
	$(Q)$(BUILD)/bench $(ARGS)

# Two files and what pkg-config says of them: --cflags where the header is, and kernels=, the path
# of the CUDA source that a program with a GPU compiles besides.
install: ## copy amp.h, amp_kernels.cu and amp.pc below PREFIX (and DESTDIR)
	$(Q)mkdir -p "$(DESTDIR)$(PREFIX)/include" "$(DESTDIR)$(PREFIX)/share/amp" \
	    "$(DESTDIR)$(PREFIX)/share/pkgconfig"
	$(Q)cp amp.h "$(DESTDIR)$(PREFIX)/include/amp.h"
	$(Q)cp amp_kernels.cu "$(DESTDIR)$(PREFIX)/share/amp/amp_kernels.cu"
	$(Q)printf '%s\n' 'prefix=$(abspath $(PREFIX))' 'includedir=$${prefix}/include' \
	    'kernels=$${prefix}/share/amp/amp_kernels.cu' '' 'Name: amp' \
	    'Description: Automatic mixed precision for C and CUDA, in one header' \
	    'Version: $(VERSION)' 'Cflags: -I$${includedir}' 'Libs.private: -lm' \
	    > "$(DESTDIR)$(PREFIX)/share/pkgconfig/amp.pc"

bench-peers: ## measure products of the CPU beside OpenBLAS and torch, where they are
	$(Q)CC="$(CC)" sh tests/bench/peers.sh $(BUILD)/peers $(ARGS)

logs: $(LOGS)

clean: ## remove everything that was built
	$(Q)rm -rf $(BUILD)

# train reads .gz files with zlib where the compiler finds it, and through gzip elsewhere.
$(BUILD)/train: examples/train.c $(wildcard examples/train_*.h) amp.h | $(BUILD)
	@echo "  CC  $@"
	$(Q)zlib=; if echo '#include <zlib.h>' | $(CC) -E -x c - > /dev/null 2>&1; then \
	    zlib='-DAMP_ZLIB -lz'; fi; \
	    $(CC) -std=c99 $(CFLAGS) $(WARN) -I. $< -o $@ -lm $$zlib

# bench has rows with two threads where the compiler has OpenMP.
$(BUILD)/bench: tests/bench/bench.c $(wildcard tests/bench/*.h) tests/gemm_ex.h amp.h | $(BUILD)
	@echo "  CC  $@"
	$(Q)openmp=; if echo 'int main(void) { return 0; }' | \
	    $(CC) -fopenmp -x c - -o $@ > /dev/null 2>&1; then openmp=-fopenmp; fi; \
	    $(CC) -std=c99 -O3 -march=native $$openmp $(WARN) -I. $< -o $@ -lm

$(BUILD)/%: examples/%.c amp.h | $(BUILD)
	@echo "  CC  $@"
	$(Q)$(CC) -std=c99 $(CFLAGS) $(WARN) -I. $< -o $@ -lm

$(BUILD):
	$(Q)mkdir -p $@

# amp.h is compiled once for each configuration; without its compiler amp.o is empty, and the tests
# say so.
define TEST_RULE
$(BUILD)/tests/$(1)/amp.o: amp.h
	$$(Q)mkdir -p $$(@D)
	$$(Q)$$(CC_$(1)) -std=c99 $$(FLAGS_$(1)) $$(WARN) -I. -DAMP_IMPLEMENTATION -x c -c amp.h -o $$@ \
	    > $$@.log 2>&1 || : > $$@
$(BUILD)/tests/$(1)/%.log: tests/test_%.c $(SUPPORT) $(BUILD)/tests/$(1)/amp.o
	$$(Q)$$(RUN_$(1)) sh tests/one.sh "$(1)" "$$*" "$$(CC_$(1))" "$$(FLAGS_$(1)) $$(WARN)" $$@
endef
$(foreach c,$(CONFIGS),$(eval $(call TEST_RULE,$(c))))

$(BUILD)/tests/self.log: tests/self.sh tests/test.h
	$(Q)mkdir -p $(BUILD)/tests
	$(Q)CC="$(CC)" CXX="$(CXX)" sh tests/self.sh $(BUILD)/tests/self > $@ 2>&1 || true
	@cat $@

$(BUILD)/tests/compile.log: tests/compile.sh amp.h
	$(Q)mkdir -p $(BUILD)/tests
	$(Q)CC="$(CC)" CXX="$(CXX)" sh tests/compile.sh $(BUILD)/tests > $@ 2>&1 || true
	@cat $@

$(BUILD)/tests/bits.log: tests/bits.sh tests/test_bits.c amp.h
	$(Q)mkdir -p $(BUILD)/tests
	$(Q)sh tests/bits.sh $(BUILD)/tests > $@ 2>&1 || true
	@cat $@

$(BUILD)/tests/examples.log: tests/examples.sh $(EXAMPLES:%=$(BUILD)/%)
	$(Q)mkdir -p $(BUILD)/tests
	$(Q)CC="$(CC)" sh tests/examples.sh $(BUILD) > $@ 2>&1 || true
	@cat $@

$(BUILD)/tests/install.log: tests/install.sh Makefile README.md examples/cmake/CMakeLists.txt \
                            amp_kernels.cu amp.h
	$(Q)mkdir -p $(BUILD)/tests
	$(Q)CC="$(CC)" CXX="$(CXX)" sh tests/install.sh $(BUILD)/tests/install > $@ 2>&1 || true
	@cat $@

# The CUDA part, without a GPU: the emulator's own tests, the kernels on it, and what nvcc says.
$(BUILD)/tests/emu.log: $(wildcard tests/emu/* tests/emu/fake/*)
	$(Q)mkdir -p $(BUILD)/tests/emu
	$(Q)CC="$(CC)" CXX="$(CXX)" sh tests/emu/self.sh $(BUILD)/tests/emu > $@ 2>&1 || true
	@cat $@

$(BUILD)/tests/cuda.log: tests/cuda.sh tests/test_cuda.cpp tests/bench/bench_cuda.cu \
                         amp_kernels.cu amp.h
	$(Q)mkdir -p $(BUILD)/tests/cuda
	$(Q)CC="$(CC)" CXX="$(CXX)" sh tests/cuda.sh $(BUILD)/tests/cuda > $@ 2>&1 || true
	@cat $@

$(BUILD)/tests/nvcc.log: tests/nvcc.sh amp_kernels.cu amp.h
	$(Q)mkdir -p $(BUILD)/tests/nvcc
	$(Q)sh tests/nvcc.sh $(BUILD)/tests/nvcc > $@ 2>&1 || true
	@cat $@

$(BUILD)/tests/gpu_self.log: tests/gpu_self.sh tests/gpu.sh
	$(Q)mkdir -p $(BUILD)/tests
	$(Q)sh tests/gpu_self.sh $(BUILD)/tests/gpu_self > $@ 2>&1 || true
	@cat $@

$(BUILD)/tests/headers.log: tests/headers.sh tests/compile/device.h amp_kernels.cu amp.h
	$(Q)mkdir -p $(BUILD)/tests/headers
	$(Q)CXX="$(CXX)" sh tests/headers.sh $(BUILD)/tests/headers > $@ 2>&1 || true
	@cat $@

$(BUILD)/tests/examples_cuda.log: tests/examples_cuda.sh $(wildcard examples/*.cu) amp_kernels.cu amp.h
	$(Q)mkdir -p $(BUILD)/tests/examples_cuda
	$(Q)CXX="$(CXX)" sh tests/examples_cuda.sh $(BUILD)/tests/examples_cuda > $@ 2>&1 || true
	@cat $@

$(BUILD)/tests/sgemm.log: tests/sgemm.sh tests/test_sgemm.cpp $(wildcard examples/trainer_*.cu) \
                          amp_kernels.cu amp.h
	$(Q)mkdir -p $(BUILD)/tests/sgemm
	$(Q)CC="$(CC)" CXX="$(CXX)" sh tests/sgemm.sh $(BUILD)/tests/sgemm > $@ 2>&1 || true
	@cat $@

# The corpora of the fuzzers are replayed by every make test; make check looks for new cases.
$(BUILD)/tests/fuzz.log $(BUILD)/tests/fuzzing.log: tests/fuzz.sh $(wildcard tests/fuzz/*) amp.h
	$(Q)mkdir -p $(BUILD)/tests
	$(Q)CC="$(CC)" CLANG="$(CLANG)" sh tests/fuzz.sh $(if $(findstring fuzzing,$@),30,replay) \
	    $(@:.log=) > $@ 2>&1 || true
	@cat $@

$(BUILD)/tests/mingw.log: tests/mingw.sh $(TESTS:%=tests/test_%.c) $(SUPPORT)
	$(Q)mkdir -p $(BUILD)/tests
	$(Q)sh tests/mingw.sh $(BUILD)/tests/mingw $(TESTS) > $@ 2>&1 || true
	@cat $@
