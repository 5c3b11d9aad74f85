# amp.h: automatic mixed precision for training loops in C and CUDA.
# Nothing needs to be built to use the library: copy amp.h. This file runs the examples and tests.

CC     ?= cc
ifeq ($(origin CXX),default) # make's own is g++
CXX    := c++
endif
CLANG  ?= clang
MPICC  ?= mpicc
CFLAGS ?= -O3
BUILD  ?= build
JOBS   ?= 2
HOURS  ?= 8
PYTHON ?= python3
N      ?= 100
SEED   ?= 1
TIER   ?= avx2
WORD   ?=
PREFIX ?= /usr/local
V      ?= 0

WARN := -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wcast-qual -Wcast-align \
        -Wundef -Wpointer-arith -Wwrite-strings -Wdouble-promotion -Wformat=2 -Wvla \
        -Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition

Q := $(if $(filter 1,$(V)),,@)

EXAMPLES := linear wrap_step pitfalls which_tensor recipes recipes_net muon autocast_ops train state gpt cnn ncf report
# Where they are, and what they share.
vpath %.c  examples examples/digits examples/nets examples/ddp
HEADERS := $(wildcard examples/*.h examples/*/*.h)

-include tests/suites.mk # lists of tests and suites, and their rules; a release has none

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run tier test ci check coverage sum soak mutants cuda gpu-carry bench bench-compare bench-peers bench-small bench-sweep bench-trainers pictures examples vectors prove install uninstall archive clean

VERSION = $(shell awk '/define AMP_VERSION_/ {printf "%s%s", dot, $$3; dot = "."}' amp.h)

help: ## show this help
	@echo "amp.h $(VERSION)"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' Makefile
	@echo "  CC CXX CLANG MPICC CFLAGS BUILD JOBS PREFIX V=1 may be set (make clean after a change)"

run: $(BUILD)/train ## train on real images in mixed precision: table, pictures, parity with fp32
	$(Q)$(BUILD)/train --out $(BUILD) $(ARGS)

examples: $(EXAMPLES:%=$(BUILD)/%) $(BUILD)/ddp_mpi ## build all examples

# Times of suites stay when their results go.
RUN = mkdir -p $(BUILD)/tests && MAKE="$(MAKE)" AGAIN="make $(MAKEOVERRIDES)" JOBS=$(JOBS) \
      sh tests/run.sh $@ $(BUILD)/tests
FRESH = find $(BUILD)/tests -mindepth 1 -maxdepth 1 ! -name times -exec rm -rf {} +

test: ## does amp.h work with this compiler, on this processor? The last line is "N passed, N failed"
	$(Q)mkdir -p $(BUILD)/tests && $(FRESH)
	$(Q)$(RUN) $(call logs,$(TEST_SUITES))

ci: ## what else a change can break, beyond make test: other compilers, processors, CUDA, trainers
	$(Q)rm -f $(call logs,$(CI_SUITES))
	$(Q)$(RUN) $(call logs,$(CI_SUITES))

check: ## both in full, proofs, fuzzing for two minutes, MinGW and wine: one to two hours
	$(Q)mkdir -p $(BUILD)/tests && $(FRESH)
	$(Q)export AMP_QUICK=0; $(RUN) $(call logs,$(TEST_SUITES) $(CI_SUITES) $(CHECK_SUITES))

coverage: ## lines, branches and conditions of amp.h that the tests run, by room; what is not compiled here
	$(Q)CLANG="$(CLANG)" sh tests/host/coverage.sh $(BUILD)/coverage $(TESTS)

sum: # of the last make test and make ci together
	$(Q)$(RUN) $(call logs,$(TEST_SUITES) $(CI_SUITES))

soak: $(BUILD)/ddp_mpi $(BUILD)/tests/o2/model.log ## 10^5 steps, 2,500 kills, 10^6 sequences of calls; fuzz for HOURS=8, build/soak keeps the cases found
	$(Q)mkdir -p $(BUILD)/soak
	$(Q)STEPS=100000 KILLS=1000 CC="$(CC)" sh tests/trainers/long.sh $(BUILD)/soak/long $(BUILD)
	$(Q)KILLS=500 sh tests/trainers/ranks.sh $(BUILD)/soak/ranks $(BUILD)/ddp_mpi
	$(Q)$(BUILD)/tests/o2/model 1000001 1000000
	$(Q)for fault in a r s; do $(BUILD)/tests/o2/model 1000001 20000 $$fault || exit; done
	$(Q)export CC="$(CC)" CLANG="$(CLANG)"; seconds=$$(($(HOURS) * 1800)); \
	    NAMES="state policy" sh tests/host/fuzz.sh $$seconds $(BUILD)/soak & first=$$!; \
	    NAMES=env sh tests/host/fuzz.sh $$seconds $(BUILD)/soak; second=$$?; \
	    wait $$first && exit $$second

mutants: ## plant N=100 faults, one at a time, by SEED=1: which do the tests not see? It goes on where it was ended
	$(Q)CC="$(CC)" CXX="$(CXX)" CLANG="$(CLANG)" $(PYTHON) tests/faults/mutants.py $(BUILD)/mutants $(N) $(SEED)

vectors: ## run tests/vectors on amp.h (PYTHON=... reads its state files)
	$(Q)mkdir -p $(BUILD)
	$(Q)CC="$(CC)" sh tests/host/vector_files.sh $(BUILD)/vectors

prove: ## what tests/proof/README.md says is proved, goal by goal
	$(Q)mkdir -p $(BUILD)
	$(Q)CC="$(CC)" sh tests/host/prove.sh $(BUILD)/prove

cuda: ## compile kernels and CUDA examples with nvcc for every architecture; show registers
	$(Q)mkdir -p $(BUILD)/cuda
	$(Q)sh tests/gpu/nvcc.sh $(BUILD)/cuda
	$(Q)CXX="$(CXX)" sh tests/gpu/headers.sh $(ARGS) $(BUILD)/cuda/headers

gpu-carry: ## compile for a visit to a GPU (ARCH=90) what gpu.sh falls back on: take build/gpu along
	$(Q)sh tests/gpu/gpu.sh carry build/gpu

bench: $(BUILD)/bench ## measure the CPU functions beside memory, fp32, plain loops and one thread
	$(Q)$(BUILD)/bench $(ARGS)

# What pkg-config says: --cflags, where the header is, and kernels=, the path of the CUDA source that a
# program with a GPU compiles besides. include/amp/amp.h is for Windows, which has an <amp.h> of its own.
# CMake's find_package(amp) reads amp-config.cmake. Files can be read by all, whatever the umask is.
HERE      = $(DESTDIR)$(PREFIX)
INSTALLED = include/amp.h include/amp_report.h include/amp/amp.h include/amp/amp_report.h \
            share/amp/amp_kernels.cu share/amp/LICENSE share/amp/amp-config.cmake \
            share/amp/amp-config-version.cmake share/pkgconfig/amp.pc
# An empty PREFIX would be the root, and DESTDIR with a relative one a name of its own beside DESTDIR. The
# shell reads names of directories from the environment: they may have blanks and quotes.
PLACE = $(if $(strip $(PREFIX)),,$(error PREFIX is empty; give a directory: make $@ PREFIX=/usr/local))$(if \
        $(DESTDIR),$(if $(filter /%,$(firstword $(PREFIX))),,$(error \
        PREFIX=$(PREFIX) is relative, and DESTDIR is set; begin PREFIX with /)))$(if $(findstring ",$(PREFIX)),$(error \
        PREFIX has a double quote, which amp.pc cannot have))
install uninstall: export HERE := $(HERE)
install: export FOUND := $(if $(filter /%,$(PREFIX)),,$(CURDIR)/)$(PREFIX)
install: ## copy amp.h, amp_report.h, amp_kernels.cu and amp.pc below PREFIX (and DESTDIR)
	$(PLACE)$(Q)umask 022 && mkdir -p "$$HERE/include/amp" "$$HERE/share/amp" "$$HERE/share/pkgconfig"
	$(Q)install -m 644 amp.h examples/amp_report.h "$$HERE/include/"
	$(Q)install -m 644 amp.h examples/amp_report.h "$$HERE/include/amp/"
	$(Q)install -m 644 amp_kernels.cu LICENSE examples/packaging/cmake/amp-config*.cmake "$$HERE/share/amp/"
	$(Q)umask 022 && rm -f "$$HERE/share/pkgconfig/amp.pc" && \
	  printf '%s\n' "prefix=$$FOUND" 'includedir=$${prefix}/include' 'kernels=$${prefix}/share/amp/amp_kernels.cu' '' \
	    'Name: amp' 'Description: Automatic mixed precision for C and CUDA, in one header' \
	    'Version: $(VERSION)' 'Cflags: -I"$${includedir}"' 'Libs.private: -lm' > "$$HERE/share/pkgconfig/amp.pc"

uninstall: ## remove what make install has put below PREFIX (and DESTDIR)
	$(PLACE)$(Q)for file in $(INSTALLED); do rm -f "$$HERE/$$file"; done
	$(Q)rmdir "$$HERE/include/amp" "$$HERE/share/amp" 2> /dev/null || true

# What a user needs; of the tests what README shows and links, files of states, and what make tier reads.
RELEASE  = $(BUILD)/release
RELEASED = amp.h amp_kernels.cu LICENSE Makefile README.md examples tests/bench/README.md tests/bench/trainers.svg tests/vectors tests/host/tier.awk
archive: ## make build/release of HEAD: both files, an archive without tests, checksums (TAG=v1.0.0 must be its version)
	$(if $(filter-out v$(VERSION)%,$(TAG)),$(error TAG=$(TAG), but amp.h is $(VERSION)))$(Q)rm -rf $(RELEASE) && mkdir -p $(RELEASE)
	$(Q)git -c tar.umask=0022 archive --prefix=amp-$(VERSION)/ -o $(RELEASE)/amp-$(VERSION).tar.gz HEAD $(RELEASED)
	$(Q)git -c tar.umask=0022 archive HEAD amp.h amp_kernels.cu | tar -xC $(RELEASE)
	$(Q)cd $(RELEASE) && sha256sum * > SHA256SUMS && cat SHA256SUMS

bench-peers: ## measure products of the CPU beside OpenBLAS and torch, where they are
	$(Q)CC="$(CC)" sh tests/bench/peers.sh $(BUILD)/peers $(ARGS)

bench-small: $(BUILD)/bench_small ## measure small products and few rows beside loops and OpenBLAS, tier by tier
	$(Q)for tier in avx2 avx512 avx512_bf16 amx neon neon_bf16; do $(BUILD)/bench_small $$tier $(ARGS) || exit; done

bench-compare: ## set amp.h's speed beside that of REF=commit (ARGS: words of rows); exit 1 below .95
	$(Q)CC="$(CC)" CFLAGS="$(CFLAGS)" sh tests/bench/compare.sh $(BUILD)/compare amp.h "$(REF)" $(ARGS)

bench-sweep: ## measure fp32 products of trainers' shapes beside OpenBLAS, a loop and REF, tier by tier (ARGS: rounds)
	$(Q)CC="$(CC)" CFLAGS="$(CFLAGS)" TIERS="avx2 avx512 neon" sh tests/bench/compare.sh $(BUILD)/sweep amp.h "$(REF)" $(ARGS)

bench-trainers: ## measure the trainers in DIR without and with their diffs, ROUNDS=3 times in turns (tests/bench/trainers.sh)
	$(Q)CC="$(CC)" CXX="$(CXX)" sh tests/bench/trainers.sh "$(DIR)" $(ROUNDS)

pictures: ## draw README's picture of trainers from the figures in tests/bench/trainers.txt
	$(Q)mkdir -p $(BUILD) && awk -f tests/bench/trainers.awk tests/bench/trainers.txt > $(BUILD)/trainers.svg && \
	    cp $(BUILD)/trainers.svg tests/bench/

FORMAT = if command -v clang-format > /dev/null; then clang-format --style='{IndentWidth: 4, ColumnLimit: 98}'; else cat; fi
tier: ## print amp.h's functions of TIER=avx2, or those with WORD=adamw, without macros (x4 avx512 pairs tiles; neon mmla: CC=...)
	$(Q)printf '%s\n' '#define AMP_IMPLEMENTATION' '#include "amp.h"' | $(CC) -std=c99 -I. -E -x c - | { $(FORMAT); } | \
	    awk -v tier="$(TIER)" -v word="$(WORD)" -f tests/host/tier.awk || \
	    { echo 'make tier: $(CC) has no function $(if $(WORD),with $(WORD) )that ends with _$(TIER)' >&2; exit 1; }

clean: ## remove everything that was built
	$(Q)rm -rf $(BUILD)

# amp.h is compiled once for all examples, which then take its implementation for included. Each
# builds alone, too, as its first lines say.
LINKED := -DAMP_CORE_INCLUDED -DAMP_IMPLEMENTATION_INCLUDED

$(BUILD)/amp.o: examples/support/train_count.h amp.h | $(BUILD)
	@echo "  CC  $@"
	$(Q)$(CC) -std=c99 $(CFLAGS) $(WARN) -I. -x c -c $< -o $@

# .gz files are read with zlib where the compiler finds it, and through gzip elsewhere. Much of the time
# of these trainers is rows in fp32, in loops that gain from all of the machine's vectors.
ZLIB    = if echo '\#include <zlib.h>' | $(CC) -E -x c - > /dev/null 2>&1; then \
          echo '-DAMP_ZLIB -lz'; fi
NATIVE  = if $(CC) -march=native -E -x c /dev/null > /dev/null 2>&1; then echo -march=native; fi
EXAMPLE = -std=c99 $(if $(filter gpt cnn ncf state,$*),$$($(NATIVE))) $(CFLAGS) $(WARN) $(LINKED) -I. \
          $< $(BUILD)/amp.o -o $@ -lm $$($(ZLIB))

# Without MPI there is no program, and a line says so.
$(BUILD)/ddp_mpi: $(BUILD)/%: %.c $(HEADERS) $(BUILD)/amp.o
	$(Q)if ! command -v $(MPICC) > /dev/null; then echo "  skip $@: no $(MPICC)"; exit; fi; \
	    echo "  CC  $@"; $(MPICC) $(EXAMPLE)

$(BUILD)/state: examples/nets/gpt.c
$(BUILD)/%: %.c $(HEADERS) $(BUILD)/amp.o
	@echo "  CC  $@"
	$(Q)$(CC) $(EXAMPLE)

# bench has rows with two threads where the compiler has OpenMP.
$(BUILD)/bench: tests/bench/bench.c $(wildcard tests/bench/*.h) tests/support/gemm_args.h tests/support/prepare.h amp.h | $(BUILD)
	@echo "  CC  $@"
	$(Q)openmp=; if echo 'int main(void) { return 0; }' | \
	    $(CC) -fopenmp -x c - -o $@ > /dev/null 2>&1; then openmp=-fopenmp; fi; \
	    $(CC) -std=c99 -O3 -march=native $$openmp $(WARN) -I. $< -o $@ -lm

$(BUILD)/bench_small: tests/bench/small.c tests/bench/blas.h tests/bench/clock.h amp.h | $(BUILD)
	@echo "  CC  $@"
	$(Q)$(CC) -std=c99 -O3 -march=native -ffp-contract=fast $(WARN) -I. $< -o $@ -lm -ldl

$(BUILD):
	$(Q)mkdir -p $@
