# What is tested, with what, and how: the Makefile includes this. A suite is a script, or a test in one
# configuration; its lines go to build/tests/NAME.log. A new name joins TESTS, or one of the three lists of suites.

vpath %.sh tests/host tests/gpu tests/trainers tests/faults

# Of tests/unit; scripts build the others there: tier.sh tiles, cblas.sh cblas, cuda.sh and ptx.sh cuda, sgemm.sh sgemm.
TESTS    := numbers scaler optimizer errors report alloc zero sparse storage gemm processors policy cache \
            state recipes vectors bits model
# Those that products reach, and of a step the least, which run on other processors than this one, too (tests/host/tier.sh).
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
FLAGS_model       := -O1 -DAMP_DEBUG -DTEST_MODEL -Wno-psabi
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
unexport AMP_DTYPE AMP_ENABLE
less = $(if $(filter 0,$(AMP_QUICK)),$(1),$(2))
RUN_aarch64        = AMP_QUICK=$(call less,1,2) RUNNER=qemu-aarch64
RUN_s390x          = AMP_QUICK=$(call less,1,2) RUNNER=qemu-s390x
RUN_ofast         := OMP_NUM_THREADS=3 OMP_WAIT_POLICY=passive
RUN_clang         := AMP_QUICK=1
RUN_clang-ofast   := AMP_QUICK=1
RUN_sanitize      := AMP_QUICK=1

SUPPORT := $(wildcard tests/support/*.h tests/vectors/*) tests/one.sh \
           examples/amp_report.h examples/support/attention.h amp.h

# make test: does amp.h work with this compiler, on this processor? make ci: what else can a change
# break? make check: both, without samples, and more. Long ones first, so that none is left alone at
# the end. What takes more than ten seconds is cut into parts, of which make test has the first.
HALVED    := $(foreach t,zero state numbers,sanitize/$(t))
QUARTERED := $(foreach t,gemm storage,sanitize/$(t))
CUT       := $(HALVED) $(QUARTERED)
PARTS     := 1of2 2of2 1of4 2of4 3of4 4of4
TEST_SUITES := cuda-plain-1of2 $(QUARTERED:%=%-1of4) $(HALVED:%=%-1of2) vector_files readme-cc compile-c compile-cxx \
               $(filter-out $(CUT),$(TESTS:%=sanitize/%)) $(TESTS:%=o2/%) model-amx $(TIERS)
# What make ci leaves to make check: clang without -Ofast, and on emulated processors what depends
# neither on vectors nor on the order of bytes (s390x computes floats in doubles, too: errors, optimizer).
LESS = $(TESTS:%=clang/%) \
       $(foreach t,alloc policy cache recipes,aarch64/$(t) s390x/$(t)) aarch64/errors aarch64/zero \
       aarch64/state s390x/gemm
CI_SUITES := arm compile-uses cuda-sanitize any_cuda model-neon_bf16 emu nvcc examples ranks gpt cnn ncf pages cuda-more bits-clang \
             cblas sgemm-plain ptx cuda-plain-2of2 cuda-races cuda-traffic examples_cuda fuzz model-pairs bits-cc \
             $(HALVED:%=%-2of2) $(foreach part,2of4 3of4 4of4,$(QUARTERED:%=%-$(part))) bits-others readme-others headers install self gpu_self \
             $(filter-out $(LESS),$(foreach c,s390x aarch64 ofast clang-ofast,$(TESTS:%=$(c)/%)))
CHECK_SUITES := $(LESS) cuda-clang sgemm-sanitize sanitized-amx prove tier_self model_self fuzzing mingw platforms long libtorch
logs = $(patsubst %,$(BUILD)/tests/%.log,$(1))

# amp.h is compiled once for each configuration; without its compiler amp.o is empty, and the tests
# say so. (CONFIG, FLAGS of the tests)
CPU   := $(BUILD)/tests
SUITE := sh tests/suite.sh $(CPU)
define TEST_RULE
$(CPU)/$(1)/amp.o: tests/amp.c tests/support/white.h tests/support/processor.h amp.h
	$$(Q)$$(SUITE) $$@.log $$(CC_$(1)) -std=c99 $$(FLAGS_$(1)) $$(WARN) $$(WARN_$(1)) -I. -c $$< -o $$@ || \
	    : > $$@
$(TESTS:%=$(CPU)/$(1)/%.log): $(CPU)/$(1)/%.log: tests/unit/test_%.c
$(foreach part,$(PARTS),$(eval $(TESTS:%=$(CPU)/$(1)/%-$(part).log): $(CPU)/$(1)/%-$(part).log: tests/unit/test_%.c))
$(CPU)/$(1)/%.log: $(SUPPORT) $(CPU)/$(1)/amp.o
	@$$(RUN_$(1)) $$(SUITE) $$@ sh tests/one.sh "$(1)" "$$*" "$$(CC_$(1))" \
	    "$(2) $$(WARN) $$(WARN_$(1))" $$(@:.log=)
endef
$(foreach c,$(CONFIGS) model model-sanitize,$(eval $(call TEST_RULE,$(c),$$(or $$(TFLAGS_$(c)),$$(FLAGS_$(c))))))

# The emulator and the kernels on it are compiled once for each way to build programs with them.
$(BUILD)/tests/kind-%/kernels.o: tests/gpu/emu/kinds.sh tests/gpu/emu/cuda_emu.cpp tests/gpu/emu/cuda_emu.h \
                                 $(wildcard tests/gpu/emu/fake/*) amp_kernels.cu amp.h
	$(Q)CXX="$(CXX)" $(SUITE) $(@D)/compile.log sh tests/gpu/emu/kinds.sh $* $(@D)

# A script writes its lines to a log: NAME.log is that of NAME.sh, NAME-PART.log of a part of it.
SCRIPT = CC="$(CC)" CXX="$(CXX)" CLANG="$(CLANG)" OBJECTS=$(CPU) $(SUITE) $@ sh $(1)
OUT    = $(@:.log=)
KERNELS := $(CPU)/kind-

$(BUILD)/tests/%.log: %.sh tests/lib.sh amp_kernels.cu amp.h
	@$(call SCRIPT,$< $(OUT))

$(BUILD)/tests/cuda-%.log: tests/gpu/cuda.sh tests/unit/test_cuda.cpp tests/lib.sh
	@$(call SCRIPT,$< $(OUT) $*)

$(BUILD)/tests/sgemm-%.log: tests/gpu/sgemm.sh tests/unit/test_sgemm.cpp tests/lib.sh
	@$(call SCRIPT,$< $(OUT) $*)

$(BUILD)/tests/compile-%.log: tests/host/compile.sh tests/lib.sh $(wildcard tests/host/compile/*) $(wildcard tests/bench/*.[ch]) amp_kernels.cu amp.h
	@$(call SCRIPT,$< $(OUT) $*)

$(BUILD)/tests/bits-%.log: tests/host/bits.sh tests/lib.sh tests/unit/test_bits.c tests/amp.c amp.h
	@$(call SCRIPT,$< $(OUT) $*)

$(TIERS:%=$(BUILD)/tests/%.log) $(MODELS:%=$(BUILD)/tests/%.log): $(BUILD)/tests/%.log: \
    tests/host/tier.sh tests/lib.sh tests/support/tiles.h tests/unit/test_tiles.c examples/linear.c examples/pitfalls.c \
    README.md $(CPU)/model/amp.o $(PRODUCTS:%=$(CPU)/o2/%.log) $(CPU)/o2/processors.log
	@$(call SCRIPT,$< $(OUT) $(if $(filter tier-%,$*),$(call less,$(TESTS),$(PRODUCTS)),$(PRODUCTS)) \
	    $(if $(filter model-amx sanitized-amx,$*),tiles processors))
$(call less,$(TIERS:%=$(BUILD)/tests/%.log): $(TESTS:%=$(CPU)/o2/%.log))
$(BUILD)/tests/sanitized-amx.log: $(CPU)/model-sanitize/amp.o $(CPU)/sanitize/processors.log \
    $(call logs,$(filter-out $(CUT),$(PRODUCTS:%=sanitize/%)))

$(foreach c,$(CONFIGS),$(CPU)/$(c)/zero.log): examples/ddp/zero.h
$(BUILD)/tests/arm.log: tests/support/tiles.h tests/support/gemm_bits.h $(wildcard tests/host/compile/*) $(CPU)/aarch64/amp.o
$(BUILD)/tests/cblas.log: tests/unit/test_cblas.c tests/host/cblas_trainer.c
$(BUILD)/tests/platforms.log: tests/host/platforms.sh $(SUPPORT) $(TESTS:%=tests/unit/test_%.c) $(wildcard tests/host/compile/msvc/*)
	@$(call SCRIPT,$< $(OUT) $(TESTS))
$(BUILD)/tests/libtorch.log: examples/libtorch.cpp $(HEADERS)
$(BUILD)/tests/self.log: $(wildcard .github/*.md .github/*/*.yml .editorconfig .clangd .ctags.d/* \
                        tests/*.sh tests/*/*.sh tests/*/*.awk tests/gpu/emu/*.sh tests/faults/planted/*) \
                        $(TESTS:%=tests/unit/test_%.c) tests/support/test.h tests/bench/peers.py tests/bench/trainers.sh $(wildcard tests/bench/compare*)
$(BUILD)/tests/vector_files.log: $(wildcard tests/vectors/* tests/vectors/state/*)
$(BUILD)/tests/model_self.log: tests/unit/test_model.c $(SUPPORT)
$(BUILD)/tests/prove.log: $(wildcard tests/proof/*)
$(BUILD)/tests/gpu_self.log: tests/gpu/gpu.sh tests/gpu/gpu_table.awk $(wildcard tests/gpu/any_*) $(wildcard tests/bench/*cuda.cu tests/bench/*.py) \
                           tests/unit/test_cuda.cpp $(KERNELS)plain/kernels.o $(CPU)/o2/amp.o
$(BUILD)/tests/readme-%.log: tests/host/readme.sh README.md examples/README.md $(wildcard tests/bench/trainers.*) tests/lib.sh amp.h
	@$(call SCRIPT,$< $(OUT) $*)
$(BUILD)/tests/readme-cc.log $(BUILD)/tests/vector_files.log: $(CPU)/o2/amp.o
$(BUILD)/tests/install.log: Makefile examples/README.md $(wildcard examples/packaging/*/*)
$(BUILD)/tests/cuda-plain.log $(BUILD)/tests/cuda-plain-1of2.log $(BUILD)/tests/cuda-plain-2of2.log: \
    $(KERNELS)plain/kernels.o $(CPU)/o2/amp.o
$(BUILD)/tests/cuda-more.log: $(KERNELS)plain/kernels.o $(CPU)/o2/amp.o \
                            $(wildcard tests/bench/*.cu) tests/bench/gpu.h
$(BUILD)/tests/cuda-clang.log: $(KERNELS)clang/kernels.o $(CPU)/clang/amp.o
$(BUILD)/tests/cuda-sanitize.log: $(KERNELS)sanitize/kernels.o $(CPU)/sanitize/amp.o
$(BUILD)/tests/cuda-races.log: $(KERNELS)races/kernels.o
$(BUILD)/tests/cuda-traffic.log: $(KERNELS)plain/kernels.o $(CPU)/o2/amp.o
$(BUILD)/tests/ptx.log: $(KERNELS)plain/kernels.o $(CPU)/o2/amp.o tests/unit/test_cuda.cpp tests/gpu/client.sh \
                      $(wildcard tests/gpu/emu/*ptx*)
$(BUILD)/tests/any_cuda.log: $(wildcard tests/gpu/any_*) $(wildcard tests/gpu/emu/*ptx*) $(KERNELS)plain/kernels.o $(CPU)/o2/amp.o
$(BUILD)/tests/sgemm-plain.log: README.md $(KERNELS)plain/kernels.o $(wildcard examples/cublas/*_*.cu) tests/gpu/client.sh
$(BUILD)/tests/sgemm-sanitize.log: $(KERNELS)sanitize/kernels.o

$(BUILD)/tests/emu.log: tests/gpu/emu/emu.sh $(wildcard tests/gpu/emu/* tests/gpu/emu/fake/*) tests/lib.sh \
                        $(KERNELS)plain/kernels.o $(KERNELS)sanitize/kernels.o
	@$(call SCRIPT,$< $(OUT))

$(BUILD)/tests/examples.log: tests/trainers/examples.sh tests/trainers/picture.awk tests/lib.sh $(EXAMPLES:%=$(BUILD)/%)
	@$(call SCRIPT,$< $(OUT) $(BUILD))

$(BUILD)/tests/gpt.log $(BUILD)/tests/cnn.log $(BUILD)/tests/ncf.log: $(BUILD)/tests/%.log: \
    tests/trainers/trainer.sh tests/trainers/picture.awk tests/lib.sh $(BUILD)/%
	@$(call SCRIPT,$< $(OUT) $(BUILD)/$*)

$(BUILD)/tests/examples_cuda.log: tests/gpu/examples_cuda.sh examples/README.md tests/lib.sh $(KERNELS)plain/kernels.o \
                                  $(CPU)/o2/amp.o $(wildcard examples/*.cu examples/*/*.cu*) $(BUILD)/gpt
	@$(call SCRIPT,$< $(OUT) $(BUILD)/gpt)

$(BUILD)/tests/ranks.log: tests/trainers/ranks.sh tests/lib.sh $(wildcard examples/ddp/*) tests/gpu/emu/fake/nccl.h \
                          $(BUILD)/ddp_mpi $(KERNELS)plain/kernels.o \
                          $(CPU)/o2/amp.o
	@$(call SCRIPT,$< $(OUT) $(BUILD)/ddp_mpi)

$(BUILD)/tests/pages.log: tests/trainers/pages.sh tests/lib.sh $(BUILD)/report $(BUILD)/train $(BUILD)/gpt $(BUILD)/cnn $(BUILD)/ncf
	@$(call SCRIPT,$< $(OUT) $(BUILD))

$(BUILD)/tests/long.log: tests/trainers/long.sh tests/lib.sh $(SUPPORT) tests/unit/test_state.c tests/unit/test_zero.c examples/ddp/zero.h tests/amp.c \
                         $(foreach e,train gpt cnn ncf report ddp_mpi,$(BUILD)/$(e))
	@$(call SCRIPT,$< $(OUT) $(BUILD))

# The corpora of the fuzzers are replayed by make ci; make check looks for new cases.
$(BUILD)/tests/fuzz.log $(BUILD)/tests/fuzzing.log: tests/host/fuzz.sh $(wildcard tests/host/fuzz/*) \
                                                    tests/lib.sh $(CPU)/sanitize/amp.o
	@$(call SCRIPT,$< $(if $(findstring fuzzing,$@),30,replay) $(OUT))

$(BUILD)/tests/mingw.log: tests/host/mingw.sh $(TESTS:%=tests/unit/test_%.c) $(SUPPORT)
	@$(call SCRIPT,$< $(OUT) $(TESTS))
