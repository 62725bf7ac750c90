# make demo    trains the digits on two ranks and prints the accuracy
# make test    C++ tests, then Python tests
# make test-c10d  PyTorch's own cases of torch.distributed, on Gloo and on horoacc
# make check   formatting, lint and types (make lint); clang-tidy where something changed since it was clean (make tidy)
# make test-aarch64  C++ tests for aarch64 under qemu-user; not part of `make test`
# make chaos   jobs of 8 ranks that are disturbed at random for 3 minutes; every bit is checked
# make fuzz    fuzzers of everything that reads a peer's bytes, under AddressSanitizer; needs Debian's clang
# make tsan    C++ tests under ThreadSanitizer; make asan: Address- and UBSanitizer
# make test-clients  Lightning, Accelerate, Transformers, DeepSpeed, Ignite, Ray and torch on HoroACC
# make test-engines  jobs on Slurm, Ray, Spark and (as manifests) Kubernetes; make test-engines-quickest: one each
# make cuda-all  compiles the kernels for all GPUs that CUDA 13 knows; `make build` for sm_90 and newer, wheels for sm_80 and newer
# make wheel   a wheel for each Python 3.10 to 3.13 that is here, and an sdist, into dist/; make test-wheel tries them
# make test-torch-versions  compiles torch's ops with the headers of older and newer versions of torch
# make bench   measures against Gloo, Open MPI and MPICH on this machine
#
# Everything lands in .venv, .mpich, .venv-clients, .venv-engines and build/. The first run installs and compiles;
# later ones only look whether something changed.
SHELL := /bin/bash -o pipefail
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := $(CURDIR)/.venv/bin
JOBS ?= $(shell nproc)
# The build and the tests must use the pinned tools, whatever else is on PATH.
export PATH := $(BIN):$(PATH)
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
NATIVE = build/cmake-$(shell $(BIN)/python -c "import sysconfig; print(sysconfig.get_config_var('SOABI'))")
MPICH_VERSION := 5.0.2

.PHONY: setup build light light-wheel demo test test-cpp test-python test-c10d test-clients test-engines \
  test-engines-quickest test-torch-versions check lint tidy bench chaos fuzz tsan asan test-aarch64 cuda-all \
  wheel sdist test-wheel clean distclean
.DELETE_ON_ERROR:

# What is there for the tests serves the demo, too; otherwise a wheel in dist/, if no source is newer.
DEMO_WHEEL = $(shell for wheel in dist/*-$$($(PYTHON) -c 'import sys; print("cp%d%d" % sys.version_info[:2])')-*.whl; \
  do test -f $$wheel && test -z "$$(find csrc horoacc launcher torch_ops tensorflow_ops setup.py CMakeLists.txt \
  -name '*.pyc' -o -name '*.so' -o -type f -newer $$wheel -print -quit)" && echo $$wheel; done | tail -1)

demo: $(if $(wildcard .venv/.editable-*),build,$(if $(DEMO_WHEEL),light-wheel,light))
	$(BIN)/horoaccrun -np 2 python examples/torch_digits.py

test: test-cpp test-python

test-cpp: build
	cmake --build $(NATIVE) --target cpp_tests -j $(JOBS)
	ctest --test-dir $(NATIVE) --output-on-failure -j 3

test-python: build
	python tests/lanes.py

build/c10d/expecttest:
	$(PIP) install --no-deps --target $(@D) expecttest==0.3.0

test-c10d: build build/c10d/expecttest
	PYTHONPATH=build/c10d python tests/torch_distributed/c10d_cases.py

bench: build
	python -m benchmarks

# A wheel of 80 to 130 MB for each, the first time. `.venv` has 2.13.0.
TORCH_VERSIONS := 2.10.0 2.11.0 2.12.0 2.14.1
test-torch-versions: build
	python tests/install/torch_versions.py $(TORCH_VERSIONS)

# Needs root, for the network laboratory. make chaos CHAOS='--seconds 3600 --seed 1'
chaos: build
	python tests/faults/chaos.py $(CHAOS)

# The tests' own time is at most 15 minutes on two cores; the first run installs for some minutes.
test-clients: build .venv-clients/.requirements
	cp -r .venv/lib/python3*/site-packages/*horoacc* .venv-clients/lib/python3*/site-packages/
	sed "1s|.*|#!$(CLIENTS)/python|" $(BIN)/horoaccrun > $(CLIENTS)/horoaccrun
	chmod +x $(CLIENTS)/horoaccrun
	$(CLIENTS)/python -m pytest -n 2 --dist loadgroup tests/clients

# What does not end in its time is interrupted, and fails. The engines' own programs are Debian's. Each engine
# has a pytest of its own: an engine's fixtures look for what they have left among its processes.
test-engines: ENGINES_SECONDS = 1500
test-engines-quickest: ENGINES_SECONDS = 600
test-engines-quickest: ENGINES_TESTS = -m quickest
test-engines test-engines-quickest: build .venv-engines/.requirements
	tests/engines/programs.sh
	PATH=$(ENGINES):$$PATH timeout --signal=INT --kill-after=30 $(ENGINES_SECONDS) \
	  sh -c 'for engine in slurm k8s ray spark; do \
	  $(ENGINES)/python -m pytest tests/engines/$$engine $(ENGINES_TESTS) || failed="$$failed $$engine"; done; \
	  test -z "$$failed" || { echo "make $@: failed:$$failed"; false; }'

# --- setup -----------------------------------------------------------------------------------
.venv/.requirements: requirements-dev.txt requirements-demo.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) install -r requirements-dev.txt
	cp $< $@

.venv/.demo: requirements-demo.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) install -r requirements-demo.txt
	cp $< $@

# An environment of its own, with the editable install that was made for .venv. DeepSpeed finds torch
# only where pip isolates no build, and its one op of CPUs is compiled here and not in a test.
CLIENTS := $(CURDIR)/.venv-clients/bin
CLIENTS_PIP := $(CLIENTS)/python -m pip --disable-pip-version-check --quiet
.venv-clients/.requirements: requirements-clients.txt
	test -x $(CLIENTS)/python || $(PYTHON) -m venv .venv-clients
	$(CLIENTS_PIP) install $$(grep -E "^(torch|setuptools|wheel|ninja)==" $<)
	$(CLIENTS_PIP) install --no-build-isolation -r $<
	cd .venv-clients && $(CLIENTS_PIP) download --no-deps --no-binary :all: \
	  $$(grep ^pytorch-ignite $(CURDIR)/$<) && tar xzf pytorch_ignite-*.tar.gz
	rm -rf .venv-clients/torch_extensions
	PATH=$(CLIENTS):$$PATH DS_ACCELERATOR=cpu TORCH_EXTENSIONS_DIR=$(CURDIR)/.venv-clients/torch_extensions \
	  $(CLIENTS)/python -c "from deepspeed.accelerator import get_accelerator as cpu; \
	  cpu().create_op_builder('ShareMemCommBuilder').load(verbose=False)"
	cp $< $@

# What .venv has, torch and HoroACC among it, is found from here by a .pth file and not installed again.
ENGINES := $(CURDIR)/.venv-engines/bin
.venv-engines/.requirements: requirements-engines.txt | .venv/.requirements
	test -x $(ENGINES)/python || $(BIN)/python -m venv .venv-engines
	site='import site; print(site.getsitepackages()[0])'; \
	  echo "import site; site.addsitedir('$$($(BIN)/python -c "$$site")')" \
	  > $$($(ENGINES)/python -c "$$site")/venv.pth
	$(ENGINES)/python -m pip --disable-pip-version-check --quiet install -r $<
	printf '#!/bin/sh\nexec $(ENGINES)/python -m horoacc.launcher.main "$$@"\n' > $(ENGINES)/horoaccrun
	chmod +x $(ENGINES)/horoaccrun
	cp $< $@

# --prefix and not --target: the latter drops the wheel's lib/.
.mpich/.version-$(MPICH_VERSION): | .venv/.requirements
	rm -rf .mpich
	$(PIP) install --no-deps --ignore-installed --no-warn-script-location --prefix .mpich \
	  mpich==$(MPICH_VERSION)
	touch $@

setup: .venv/.requirements .mpich/.version-$(MPICH_VERSION)

# The editable install writes where the packages lie, so it is repeated when their list changes.
PACKAGES := $(sort $(dir $(wildcard horoacc/*/__init__.py horoacc/*/*/__init__.py \
  launcher/__init__.py launcher/*/__init__.py)))
PACKAGES_SUM := $(shell echo "$(CURDIR) $(PACKAGES)" | cksum | cut -d' ' -f1)
.venv/.editable-$(PACKAGES_SUM): pyproject.toml setup.py horoacc/_version.py | setup
	rm -f .venv/.editable-* .venv/.light-* .venv/.wheel
	HOROACC_TESTS=ON $(PIP) install --no-deps --no-build-isolation -e .
	touch $@

define COMPILE
@cmake --build $(NATIVE) -j $(JOBS) | { grep -v "no work to do\|Re-checking\|Entering" || true; }
@cmake --install $(NATIVE) --prefix horoacc > /dev/null
endef

build: .venv/.editable-$(PACKAGES_SUM)
	$(COMPILE)

# For the demo: neither tests nor MPI nor kernels for GPUs.
.venv/.light-$(PACKAGES_SUM): pyproject.toml setup.py horoacc/_version.py | .venv/.demo
	rm -f .venv/.light-* .venv/.wheel
	HOROACC_CUDA=OFF HOROACC_MPI_FETCH=0 $(PIP) install --no-deps --no-build-isolation -e .
	touch $@

light: .venv/.light-$(PACKAGES_SUM)
	$(COMPILE)

light-wheel: .venv/.demo
	test .venv/.wheel -nt $(DEMO_WHEEL) || \
	  { rm -f .venv/.light-* && $(PIP) install --no-deps --force-reinstall $(DEMO_WHEEL) && touch .venv/.wheel; }

# --- wheels ----------------------------------------------------------------------------------
wheel: setup sdist
	python tests/install/wheels.py build dist

sdist: setup
	rm -f dist/horoacc-*.tar.gz
	python -c "from setuptools.build_meta import build_sdist; build_sdist('dist')" > /dev/null

test-wheel: setup
	python tests/install/wheels.py try dist

# --- checks ----------------------------------------------------------------------------------
CXX_FILES = $(shell find csrc torch_ops tensorflow_ops tests/cpp tests/fuzz -name '*.cc' -o -name '*.cu' -o -name '*.h')

# mypy must see launcher/ where it is imported: as horoacc.launcher.
define TYPES
rm -rf build/types && mkdir -p build/types/horoacc
ln -s $(CURDIR)/horoacc/* build/types/horoacc/ && ln -sfn $(CURDIR)/launcher build/types/horoacc/launcher
cd build/types && mypy --config-file $(CURDIR)/pyproject.toml -p horoacc
endef

check: lint tidy

lint: build
	@clang-format --dry-run --Werror $(CXX_FILES)
	ruff check .
	ruff format --check .
	$(TYPES)

tidy: build
	python tests/tidy.py $(NATIVE) -j $(JOBS)

# Sanitizers reserve fixed address ranges that a randomised layout may occupy.
NO_RANDOM := $(shell setarch $$(uname -m) -R true 2> /dev/null && echo setarch $$(uname -m) -R)

# LONG_TESTS=OFF: without those that take minutes each, of searches and of GPUs that the host plays.
LONG_TESTS ?= ON
tsan asan: | setup
	cmake -G Ninja -S . -B build/$@ -DHOROACC_TESTS=ON -DHOROACC_PYTHON=OFF -DHOROACC_UNITY=ON \
	  -DCMAKE_CXX_FLAGS_RELEASE="-O1 -DNDEBUG" -DHOROACC_SANITIZE=$(if $(filter tsan,$@),thread,address) \
	  -DHOROACC_LONG_TESTS=$(LONG_TESTS)
	cmake --build build/$@ --target cpp_tests -j $(JOBS)
	TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1 \
	ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1 UBSAN_OPTIONS=print_stacktrace=1 \
	  $(NO_RANDOM) ctest --test-dir build/$@ --output-on-failure -j 2

# All fuzzers together for so many seconds of time, JOBS at a time. What they find lands in build/fuzz/found.
FUZZ_SECONDS ?= 120
fuzz: | setup
	tests/fuzz/programs.sh
	cmake -G Ninja -S . -B build/$@ -DCMAKE_CXX_COMPILER=clang++ -DHOROACC_PYTHON=OFF -DHOROACC_SANITIZE=fuzzer
	cmake --build build/$@ --target fuzzers -j $(JOBS)
	tests/fuzz/run.sh build/$@ $(FUZZ_SECONDS) $(JOBS)

# For aarch64, run by qemu-user: docs/aarch64.md. Needs Debian's g++-aarch64-linux-gnu and qemu-user.
test-aarch64: build
	@command -v aarch64-linux-gnu-g++ qemu-aarch64 > /dev/null || \
	  { echo "make test-aarch64 needs Debian's packages g++-aarch64-linux-gnu and qemu-user"; false; }
	cmake -G Ninja -S . -B build/aarch64 -DHOROACC_TESTS=ON -DHOROACC_PYTHON=OFF -DHOROACC_CUDA=OFF \
	  --toolchain tests/aarch64/toolchain.cmake
	cmake --build build/aarch64 --target cpp_tests horoacc -j $(JOBS)
	cmake --build $(NATIVE) --target kernel_bits -j $(JOBS)
	tests/aarch64/run.sh build/aarch64 $(NATIVE) $(JOBS)

# Into a folder of its own: nothing else is built from it.
cuda-all: | setup
	cmake -G Ninja -S . -B build/$@ -DHOROACC_PYTHON=OFF \
	  "-DHOROACC_CUDA_ARCHITECTURES=75-real;80-real;86-real;89-real;90-real;100"
	cmake --build build/$@ --target horoacc_cuda -j $(JOBS)

clean:
	rm -rf build dist *.egg-info horoacc/lib horoacc/_core*.so .venv/.editable-*

distclean: clean
	rm -rf .venv .venv-clients .venv-engines .mpich
