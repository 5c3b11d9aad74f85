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
PREFIX ?= /usr/local
V      ?= 0

WARN := -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wcast-qual -Wcast-align \
        -Wundef -Wpointer-arith -Wwrite-strings -Wdouble-promotion -Wformat=2 -Wvla \
        -Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition

Q := $(if $(filter 1,$(V)),,@)

EXAMPLES := linear wrap_step pitfalls which_tensor recipes recipes_net autocast_ops train state gpt cnn ncf report
TESTS    := numbers scaler optimizer report alloc ranks sparse fewer gemm processors policy cache \
            state recipes vectors bits model
# Those that products reach, and of a step the least, which run on other processors than this one, too (tests/tier.sh).
PRODUCTS := gemm cache policy recipes state sparse
TIERS    := tier-c tier-avx2 tier-avx512 tier-pairs tier-amx tier-neon
MODELS   := model-amx model-pairs model-neon_bf16 sanitized-amx

# How amp.h and its tests are built. Their own code needs less of the compiler than amp.h (TFLAGS).
# aarch64 has NEON, s390x the other byte order; both run under qemu.
CONFIGS    := s390x aarch64 sanitize o2 ofast clang-ofast clang
# ofast has threads, too, where the compiler has OpenMP; it is asked once.
OPENMP = $(eval OPENMP := $(shell mkdir -p $(BUILD)/tests && echo 'int main(void) { return 0; }' | \
    $(CC) -fopenmp -x c - -o $(BUILD)/tests/openmp 2> /dev/null && echo -fopenmp))$(OPENMP)
# The newest clang assumes the most of -Ofast.
NEWEST = $(eval NEWEST := $(if $(filter clang,$(CLANG)),$(shell for n in 22 21 20 19 18 17 16 15; do \
    command -v clang-$$n && break; done),))$(or $(NEWEST),$(CLANG))
CC_o2          = $(CC)
CC_ofast       = $(CC)
CC_clang       = $(CLANG)
CC_clang-ofast = $(NEWEST)
CC_sanitize    = $(CC)
CC_aarch64    := aarch64-linux-gnu-gcc
CC_s390x      := s390x-linux-gnu-gcc
CC_model          = $(CC)
CC_model-sanitize = $(CC)
FLAGS_o2          := -O2
FLAGS_ofast        = -Ofast $(OPENMP)
FLAGS_clang       := -O2
FLAGS_clang-ofast := -O3 -ffast-math -march=native
FLAGS_sanitize    := -Og -g1 -fsanitize=address,undefined -fno-sanitize-recover=all
FLAGS_aarch64     := -O2 -static
FLAGS_model       := -O1 -DTEST_MODEL -Wno-psabi
FLAGS_model-sanitize := $(FLAGS_sanitize) -DTEST_MODEL -Wno-psabi
FLAGS_s390x       := -O2 -static
WARN_clang-ofast  := -Wno-unknown-warning-option -Wno-invalid-feature-combination # clang 19's own, on AVX10
WARN_s390x        := -Wno-double-promotion # of all floats: there -std=c99 computes in doubles
TFLAGS_o2         := -O1
TFLAGS_ofast       = -O1 -ffast-math $(OPENMP)

# make test and make ci take samples where all would take long: AMP_QUICK=1, on emulated processors 2.
# make check does not, but for these.
AMP_QUICK ?= 1
export AMP_QUICK
# What narrows a test, or speaks to the library, is for programs that are run by hand.
unexport AMP_TEST_PART AMP_TEST_TIER AMP_TEST_AFTER AMP_TEST_NAMES
unexport AMP_POLICY AMP_DTYPE AMP_LOSS_SCALE AMP_ENABLE
less = $(if $(filter 0,$(AMP_QUICK)),$(1),$(2))
RUN_aarch64        = AMP_QUICK=$(call less,1,2) RUNNER=qemu-aarch64
RUN_s390x          = AMP_QUICK=$(call less,1,2) RUNNER=qemu-s390x
RUN_ofast         := OMP_NUM_THREADS=3 OMP_WAIT_POLICY=passive
RUN_clang         := AMP_QUICK=1
RUN_clang-ofast   := AMP_QUICK=1
RUN_sanitize      := AMP_QUICK=1

SUPPORT := $(wildcard tests/*.h tests/vectors/*) tests/one.sh tests/golden/scaler_traces.txt amp.h

# make test: does amp.h work with this compiler, on this processor? make ci: what else can a change
# break? make check: both, without samples, and more. Long ones first, so that none is left alone at
# the end. What takes more than ten seconds is halved: of NAME, make test has NAME-1of2.
HALVED := $(foreach t,gemm ranks fewer state numbers,sanitize/$(t))
TEST_SUITES := cuda-plain-1of2 cuda-plain-2of2 $(HALVED:%=%-1of2) vectors readme-cc bits-cc compile-c \
               compile-cxx $(filter-out $(HALVED),$(TESTS:%=sanitize/%)) $(TESTS:%=o2/%) model-amx \
               model-pairs $(TIERS)
# What make ci leaves to make check: clang without -Ofast, and on emulated processors what depends
# neither on vectors nor on the order of bytes.
LESS = $(TESTS:%=clang/%) \
       $(foreach t,alloc policy cache recipes,aarch64/$(t) s390x/$(t)) aarch64/ranks \
       aarch64/state s390x/gemm s390x/optimizer
CI_SUITES := arm compile-uses cuda-sanitize model-neon_bf16 emu nvcc examples ranks gpt cnn ncf report cuda-more bits-clang \
             cblas sgemm-plain ptx cuda-races cuda-traffic examples_cuda fuzz $(HALVED:%=%-2of2) \
             bits-others readme-others headers install self gpu_self \
             $(filter-out $(LESS),$(foreach c,s390x aarch64 ofast clang-ofast,$(TESTS:%=$(c)/%)))
CHECK_SUITES := $(LESS) cuda-clang sgemm-sanitize sanitized-amx prove tier_self model_self fuzzing mingw platforms long libtorch
logs = $(patsubst %,$(BUILD)/tests/%.log,$(1))

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run tier test ci check coverage sum soak cuda gpu-carry bench bench-compare bench-peers examples vectors prove install uninstall clean

VERSION = $(shell awk '/define AMP_VERSION_/ {printf "%s%s", dot, $$3; dot = "."}' amp.h)

help: ## show this help
	@echo "amp.h $(VERSION)"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' Makefile
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

check: ## both in full, proofs, fuzzing for two minutes, MinGW and wine: over half an hour
	$(Q)mkdir -p $(BUILD)/tests && $(FRESH)
	$(Q)export AMP_QUICK=0; $(RUN) $(call logs,$(TEST_SUITES) $(CI_SUITES) $(CHECK_SUITES))

coverage: ## lines, branches and conditions of amp.h that the tests run, by room; what is not compiled here
	$(Q)CLANG="$(CLANG)" sh tests/coverage.sh $(BUILD)/coverage $(TESTS)

sum: # of the last make test and make ci together
	$(Q)$(RUN) $(call logs,$(TEST_SUITES) $(CI_SUITES))

soak: $(BUILD)/ddp_mpi $(BUILD)/tests/o2/model.log ## 10^6 steps, 2,500 kills, 10^6 sequences of calls; fuzz for HOURS=8, build/soak keeps the cases found
	$(Q)mkdir -p $(BUILD)/soak
	$(Q)STEPS=1000000 KILLS=1000 CC="$(CC)" sh tests/long.sh $(BUILD)/soak/long $(BUILD)
	$(Q)KILLS=500 sh tests/ranks.sh $(BUILD)/soak/ranks $(BUILD)/ddp_mpi
	$(Q)$(BUILD)/tests/o2/model 1000001 1000000
	$(Q)for fault in a r s; do $(BUILD)/tests/o2/model 1000001 20000 $$fault || exit; done
	$(Q)export CC="$(CC)" CLANG="$(CLANG)"; seconds=$$(($(HOURS) * 1800)); \
	    NAMES="state policy" sh tests/fuzz.sh $$seconds $(BUILD)/soak & first=$$!; \
	    NAMES=env sh tests/fuzz.sh $$seconds $(BUILD)/soak; second=$$?; \
	    wait $$first && exit $$second

mutants: ## plant N=100 faults, one at a time, by SEED=1: which do the tests not see? It goes on where it was ended
	$(Q)CC="$(CC)" CXX="$(CXX)" CLANG="$(CLANG)" $(PYTHON) tests/mutants.py $(BUILD)/mutants $(N) $(SEED)

vectors: ## run tests/vectors on amp.h, and on PyTorch's scaler where it is (PYTHON=...)
	$(Q)mkdir -p $(BUILD)
	$(Q)CC="$(CC)" sh tests/vectors.sh $(BUILD)/vectors

prove: ## what tests/proof/README.md says is proved, goal by goal
	$(Q)mkdir -p $(BUILD)
	$(Q)CC="$(CC)" sh tests/prove.sh $(BUILD)/prove

cuda: ## compile kernels and CUDA examples with nvcc for every architecture; show registers
	$(Q)mkdir -p $(BUILD)/cuda
	$(Q)sh tests/nvcc.sh $(BUILD)/cuda
	$(Q)CXX="$(CXX)" sh tests/headers.sh $(ARGS) $(BUILD)/cuda/headers

gpu-carry: ## compile for a visit to a GPU (ARCH=90) what gpu.sh falls back on: take build/gpu along
	$(Q)sh tests/gpu.sh carry build/gpu

bench: $(BUILD)/bench $(BUILD)/bench_ranks ## measure the CPU functions beside memory, fp32, plain loops and one thread
	$(Q)$(BUILD)/bench $(ARGS)
	$(Q)$(BUILD)/bench_ranks

# What pkg-config says: --cflags, where the header is, and kernels=, the path of the CUDA source that a
# program with a GPU compiles besides. include/amp/amp.h is for Windows, which has an <amp.h> of its own.
# CMake's find_package(amp) reads amp-config.cmake. Files can be read by all, whatever the umask is.
HERE      = $(DESTDIR)$(PREFIX)
INSTALLED = include/amp.h include/amp_report.h include/amp/amp.h include/amp/amp_report.h \
            share/amp/amp_kernels.cu share/amp/LICENSE share/amp/amp-config.cmake \
            share/amp/amp-config-version.cmake share/pkgconfig/amp.pc
# An empty PREFIX would be the root, and DESTDIR with a relative one a name of its own beside DESTDIR.
PLACE = $(if $(strip $(PREFIX)),,$(error PREFIX is empty; give a directory: make $@ PREFIX=/usr/local))$(if \
        $(DESTDIR),$(if $(filter /%,$(firstword $(PREFIX))),,$(error \
        PREFIX=$(PREFIX) is relative, and DESTDIR is set; begin PREFIX with /)))
install: ## copy amp.h, amp_report.h, amp_kernels.cu and amp.pc below PREFIX (and DESTDIR)
	$(PLACE)$(Q)umask 022 && mkdir -p "$(HERE)/include/amp" "$(HERE)/share/amp" "$(HERE)/share/pkgconfig"
	$(Q)install -m 644 amp.h examples/amp_report.h "$(HERE)/include/"
	$(Q)install -m 644 amp.h examples/amp_report.h "$(HERE)/include/amp/"
	$(Q)install -m 644 amp_kernels.cu LICENSE examples/packaging/cmake/amp-config.cmake "$(HERE)/share/amp/"
	$(Q)umask 022 && rm -f "$(HERE)/share/pkgconfig/amp.pc" "$(HERE)/share/amp/amp-config-version.cmake" && \
	  printf '%s\n' 'prefix=$(if $(filter /%,$(PREFIX)),$(PREFIX),$(CURDIR)/$(PREFIX))' \
	    'includedir=$${prefix}/include' 'kernels=$${prefix}/share/amp/amp_kernels.cu' '' 'Name: amp' \
	    'Description: Automatic mixed precision for C and CUDA, in one header' \
	    'Version: $(VERSION)' 'Cflags: -I"$${includedir}"' 'Libs.private: -lm' \
	    > "$(HERE)/share/pkgconfig/amp.pc" && \
	  printf '%s\n' 'set(PACKAGE_VERSION "$(VERSION)")' \
	    'string(REGEX MATCH "^[0-9]+[.][0-9]+" minor "$(VERSION)")' \
	    'if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)' '  set(PACKAGE_VERSION_EXACT TRUE)' 'endif()' \
	    'if(PACKAGE_FIND_VERSION_MAJOR STREQUAL "" OR (PACKAGE_FIND_VERSION VERSION_LESS_EQUAL PACKAGE_VERSION AND' \
	    '   PACKAGE_FIND_VERSION VERSION_GREATER_EQUAL minor))' '  set(PACKAGE_VERSION_COMPATIBLE TRUE)' 'endif()' \
	    > "$(HERE)/share/amp/amp-config-version.cmake"

uninstall: ## remove what make install has put below PREFIX (and DESTDIR)
	$(PLACE)$(Q)for file in $(INSTALLED); do rm -f "$(HERE)/$$file"; done
	$(Q)rmdir "$(HERE)/include/amp" "$(HERE)/share/amp" 2> /dev/null || true

bench-peers: ## measure products of the CPU beside OpenBLAS and torch, where they are
	$(Q)CC="$(CC)" sh tests/bench/peers.sh $(BUILD)/peers $(ARGS)

bench-compare: ## set amp.h's speed beside that of REF=commit (ARGS: words of rows); exit 1 below .95
	$(Q)CC="$(CC)" CFLAGS="$(CFLAGS)" sh tests/bench/compare.sh $(BUILD)/compare amp.h "$(REF)" $(ARGS)

FORMAT = if command -v clang-format > /dev/null; then clang-format --style='{IndentWidth: 4, ColumnLimit: 98}'; else cat; fi
tier: ## print amp.h's functions of TIER=avx2 without macros (x4 avx512 pairs tiles; neon mmla: CC=...)
	$(Q)printf '%s\n' '#define AMP_IMPLEMENTATION' '#include "amp.h"' | $(CC) -std=c99 -I. -E -x c - | { $(FORMAT); } | \
	    awk -v tier="$(TIER)" -f tests/tier.awk || { echo 'make tier: $(CC) has no function that ends with _$(TIER)' >&2; exit 1; }

clean: ## remove everything that was built
	$(Q)rm -rf $(BUILD)

# amp.h is compiled once for all examples, which then take its implementation for included. Each
# builds alone, too, as its first lines say.
LINKED := -DAMP_CORE_INCLUDED -DAMP_IMPLEMENTATION_INCLUDED

$(BUILD)/amp.o: examples/train_count.h amp.h | $(BUILD)
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
$(BUILD)/ddp_mpi: $(BUILD)/%: examples/%.c $(wildcard examples/*.h) $(BUILD)/amp.o
	$(Q)if ! command -v $(MPICC) > /dev/null; then echo "  skip $@: no $(MPICC)"; exit; fi; \
	    echo "  CC  $@"; $(MPICC) $(EXAMPLE)

$(BUILD)/state: examples/gpt.c
$(BUILD)/%: examples/%.c $(wildcard examples/*.h) $(BUILD)/amp.o
	@echo "  CC  $@"
	$(Q)$(CC) $(EXAMPLE)

$(BUILD)/bench_ranks: tests/bench/bench_ranks.c tests/bench/clock.h tests/prepare.h amp.h | $(BUILD)
	@echo "  CC  $@"
	$(Q)$(CC) -std=c99 $(CFLAGS) -I. $< -o $@ -lm

# bench has rows with two threads where the compiler has OpenMP.
$(BUILD)/bench: tests/bench/bench.c $(wildcard tests/bench/*.h) tests/gemm_ex.h tests/prepare.h amp.h | $(BUILD)
	@echo "  CC  $@"
	$(Q)openmp=; if echo 'int main(void) { return 0; }' | \
	    $(CC) -fopenmp -x c - -o $@ > /dev/null 2>&1; then openmp=-fopenmp; fi; \
	    $(CC) -std=c99 -O3 -march=native $$openmp $(WARN) -I. $< -o $@ -lm

$(BUILD):
	$(Q)mkdir -p $@

# amp.h is compiled once for each configuration; without its compiler amp.o is empty, and the tests
# say so. (CONFIG, FLAGS of the tests)
CPU   := $(BUILD)/tests
SUITE := sh tests/suite.sh $(CPU)
define TEST_RULE
$(CPU)/$(1)/amp.o: tests/amp.c tests/white.h tests/processor.h amp.h
	$$(Q)$$(SUITE) $$@.log $$(CC_$(1)) -std=c99 $$(FLAGS_$(1)) $$(WARN) $$(WARN_$(1)) -I. -c $$< -o $$@ || \
	    : > $$@
$(TESTS:%=$(CPU)/$(1)/%.log): $(CPU)/$(1)/%.log: tests/test_%.c
$(TESTS:%=$(CPU)/$(1)/%-1of2.log): $(CPU)/$(1)/%-1of2.log: tests/test_%.c
$(TESTS:%=$(CPU)/$(1)/%-2of2.log): $(CPU)/$(1)/%-2of2.log: tests/test_%.c
$(CPU)/$(1)/%.log: $(SUPPORT) $(CPU)/$(1)/amp.o
	@$$(RUN_$(1)) $$(SUITE) $$@ sh tests/one.sh "$(1)" "$$*" "$$(CC_$(1))" \
	    "$(2) $$(WARN) $$(WARN_$(1))" $$(@:.log=)
endef
$(foreach c,$(CONFIGS) model model-sanitize,$(eval $(call TEST_RULE,$(c),$$(or $$(TFLAGS_$(c)),$$(FLAGS_$(c))))))

# The emulator and the kernels on it are compiled once for each way to build programs with them.
$(BUILD)/tests/kind-%/kernels.o: tests/emu/kinds.sh tests/emu/cuda_emu.cpp tests/emu/cuda_emu.h \
                                 $(wildcard tests/emu/fake/*) amp_kernels.cu amp.h
	$(Q)CXX="$(CXX)" $(SUITE) $(@D)/compile.log sh tests/emu/kinds.sh $* $(@D)

# A script writes its lines to a log: NAME.log is that of NAME.sh, NAME-PART.log of a part of it.
SCRIPT = CC="$(CC)" CXX="$(CXX)" CLANG="$(CLANG)" OBJECTS=$(CPU) $(SUITE) $@ sh $(1)
OUT    = $(@:.log=)
KERNELS := $(CPU)/kind-

$(BUILD)/tests/%.log: tests/%.sh tests/lib.sh amp_kernels.cu amp.h
	@$(call SCRIPT,$< $(OUT))

$(BUILD)/tests/cuda-%.log: tests/cuda.sh tests/test_cuda.cpp tests/lib.sh
	@$(call SCRIPT,$< $(OUT) $*)

$(BUILD)/tests/sgemm-%.log: tests/sgemm.sh tests/test_sgemm.cpp tests/lib.sh
	@$(call SCRIPT,$< $(OUT) $*)

$(BUILD)/tests/compile-%.log: tests/compile.sh tests/lib.sh $(wildcard tests/compile/*) amp_kernels.cu amp.h
	@$(call SCRIPT,$< $(OUT) $*)

$(BUILD)/tests/bits-%.log: tests/bits.sh tests/lib.sh tests/test_bits.c tests/amp.c amp.h
	@$(call SCRIPT,$< $(OUT) $*)

$(TIERS:%=$(BUILD)/tests/%.log) $(MODELS:%=$(BUILD)/tests/%.log): $(BUILD)/tests/%.log: \
    tests/tier.sh tests/lib.sh tests/tiles.h tests/test_tiles.c examples/linear.c examples/pitfalls.c \
    README.md $(CPU)/model/amp.o $(PRODUCTS:%=$(CPU)/o2/%.log) $(CPU)/o2/processors.log
	@$(call SCRIPT,$< $(OUT) $(if $(filter tier-%,$*),$(call less,$(TESTS),$(PRODUCTS)),$(PRODUCTS)) \
	    $(if $(filter model-amx sanitized-amx,$*),tiles processors))
$(call less,$(TIERS:%=$(BUILD)/tests/%.log): $(TESTS:%=$(CPU)/o2/%.log))
$(BUILD)/tests/sanitized-amx.log: $(CPU)/model-sanitize/amp.o $(CPU)/sanitize/processors.log \
    $(call logs,$(filter-out $(HALVED),$(PRODUCTS:%=sanitize/%)))

$(BUILD)/tests/arm.log: tests/tiles.h tests/gemm_bits.h $(wildcard tests/compile/*) $(CPU)/aarch64/amp.o
$(BUILD)/tests/cblas.log: tests/test_cblas.c tests/cblas_trainer.c
$(BUILD)/tests/platforms.log: tests/platforms.sh $(SUPPORT) $(TESTS:%=tests/test_%.c) $(wildcard tests/compile/msvc/*)
	@$(call SCRIPT,$< $(OUT) $(TESTS))
$(BUILD)/tests/libtorch.log: examples/libtorch.cpp $(wildcard examples/train_*.h)
$(BUILD)/tests/self.log: $(wildcard .github/*.md .github/*/*.yml .editorconfig tests/*.awk tests/*.sh tests/emu/*.sh tests/planted/*) \
                        $(TESTS:%=tests/test_%.c) tests/test.h tests/bench/peers.py $(wildcard tests/bench/compare*)
$(BUILD)/tests/vectors.log: $(wildcard tests/vectors/*)
$(BUILD)/tests/model_self.log: tests/test_model.c $(SUPPORT)
$(BUILD)/tests/prove.log: $(wildcard tests/proof/*)
$(BUILD)/tests/gpu_self.log: tests/gpu.sh tests/gpu_table.awk $(wildcard tests/bench/*cuda.cu tests/bench/*.py) \
                           tests/test_cuda.cpp $(KERNELS)plain/kernels.o $(CPU)/o2/amp.o
$(BUILD)/tests/readme-%.log: tests/readme.sh README.md tests/lib.sh amp.h
	@$(call SCRIPT,$< $(OUT) $*)
$(BUILD)/tests/install.log: Makefile README.md $(wildcard examples/packaging/*/*)
$(BUILD)/tests/cuda-plain.log $(BUILD)/tests/cuda-plain-1of2.log $(BUILD)/tests/cuda-plain-2of2.log: \
    $(KERNELS)plain/kernels.o $(CPU)/o2/amp.o
$(BUILD)/tests/cuda-more.log: $(KERNELS)plain/kernels.o $(CPU)/o2/amp.o \
                            $(wildcard tests/bench/*.cu) tests/bench/gpu.h
$(BUILD)/tests/cuda-clang.log: $(KERNELS)clang/kernels.o $(CPU)/clang/amp.o
$(BUILD)/tests/cuda-sanitize.log: $(KERNELS)sanitize/kernels.o $(CPU)/sanitize/amp.o
$(BUILD)/tests/cuda-races.log: $(KERNELS)races/kernels.o
$(BUILD)/tests/cuda-traffic.log: $(KERNELS)plain/kernels.o $(CPU)/o2/amp.o
$(BUILD)/tests/ptx.log: $(KERNELS)plain/kernels.o $(CPU)/o2/amp.o tests/test_cuda.cpp \
                      $(wildcard tests/emu/*ptx*)
$(BUILD)/tests/sgemm-plain.log: $(KERNELS)plain/kernels.o $(wildcard examples/trainer_*.cu)
$(BUILD)/tests/sgemm-sanitize.log: $(KERNELS)sanitize/kernels.o

$(BUILD)/tests/emu.log: tests/emu/self.sh $(wildcard tests/emu/* tests/emu/fake/*) tests/lib.sh \
                        $(KERNELS)plain/kernels.o $(KERNELS)sanitize/kernels.o
	@$(call SCRIPT,$< $(OUT))

$(BUILD)/tests/examples.log: tests/examples.sh tests/lib.sh $(EXAMPLES:%=$(BUILD)/%)
	@$(call SCRIPT,$< $(OUT) $(BUILD))

$(BUILD)/tests/gpt.log $(BUILD)/tests/cnn.log $(BUILD)/tests/ncf.log: $(BUILD)/tests/%.log: \
    tests/trainer.sh tests/lib.sh $(BUILD)/%
	@$(call SCRIPT,$< $(OUT) $(BUILD)/$*)

$(BUILD)/tests/examples_cuda.log: tests/examples_cuda.sh README.md tests/lib.sh $(KERNELS)plain/kernels.o \
                                  $(CPU)/o2/amp.o $(wildcard examples/*.cu*) $(BUILD)/gpt
	@$(call SCRIPT,$< $(OUT) $(BUILD)/gpt)

$(BUILD)/tests/ranks.log: tests/ranks.sh tests/lib.sh examples/ddp_nccl.cu tests/emu/fake/nccl.h \
                          tests/bench/bench_ranks.c $(BUILD)/ddp_mpi $(KERNELS)plain/kernels.o \
                          $(CPU)/o2/amp.o
	@$(call SCRIPT,$< $(OUT) $(BUILD)/ddp_mpi)

$(BUILD)/tests/report.log: tests/report.sh tests/lib.sh $(BUILD)/report $(BUILD)/train $(BUILD)/gpt $(BUILD)/cnn $(BUILD)/ncf
	@$(call SCRIPT,$< $(OUT) $(BUILD))

$(BUILD)/tests/long.log: tests/long.sh tests/lib.sh $(SUPPORT) tests/test_state.c tests/test_ranks.c tests/amp.c \
                         $(foreach e,train gpt cnn ncf report ddp_mpi,$(BUILD)/$(e))
	@$(call SCRIPT,$< $(OUT) $(BUILD))

# The corpora of the fuzzers are replayed by make ci; make check looks for new cases.
$(BUILD)/tests/fuzz.log $(BUILD)/tests/fuzzing.log: tests/fuzz.sh $(wildcard tests/fuzz/*) \
                                                    tests/lib.sh $(CPU)/sanitize/amp.o
	@$(call SCRIPT,$< $(if $(findstring fuzzing,$@),30,replay) $(OUT))

$(BUILD)/tests/mingw.log: tests/mingw.sh $(TESTS:%=tests/test_%.c) $(SUPPORT)
	@$(call SCRIPT,$< $(OUT) $(TESTS))
