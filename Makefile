# make serve: the default model behind an OpenAI API on 127.0.0.1:8000.   make test: everything that must hold.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODEL ?= smollm2
PORT ?= 8000
KERNELS := CMakeLists.txt $(wildcard $(addprefix src/decodeloop/engine/kernels/src/,*.cpp *.h isa/*.cpp isa/*.h))

.PHONY: setup serve test check kernels kernels-aarch64 clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt $(KERNELS)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "decodeloop needs Python 3.11 or newer, not %d.%d" % sys.version_info[:2])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[torch,dev]'
	touch $@

serve: setup
	$(BIN)/decodeloop serve $(MODEL) --port $(PORT)

test: setup check kernels
	$(BIN)/decodeloop models --fetch smollm2 > /dev/null
	$(BIN)/pytest

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The kernels' own tests: every instruction set that this machine has, and AVX-512 emulated where SIMDe is installed.
kernels: setup
	@if command -v $${CXX:-c++} > /dev/null; then \
		$(BIN)/cmake -S . -B build/kernels -DDECODELOOP_MODULE=OFF -DDECODELOOP_TESTS=ON > /dev/null && \
		$(BIN)/cmake --build build/kernels && $(BIN)/ctest --test-dir build/kernels --output-on-failure; \
	else \
		echo "no C++ compiler: the kernels are neither built nor tested"; \
	fi

# The same tests on 64-bit ARM, cross-compiled and emulated (Debian: g++-aarch64-linux-gnu, qemu-user).
kernels-aarch64: setup
	@if command -v aarch64-linux-gnu-g++ > /dev/null && command -v qemu-aarch64 > /dev/null; then \
		$(BIN)/cmake -S . -B build/kernels-aarch64 -DDECODELOOP_MODULE=OFF -DDECODELOOP_TESTS=ON \
			-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
			-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \
			"-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64;-L;/usr/aarch64-linux-gnu" > /dev/null && \
		$(BIN)/cmake --build build/kernels-aarch64 && $(BIN)/ctest --test-dir build/kernels-aarch64 --output-on-failure; \
	else \
		echo "no g++-aarch64-linux-gnu or no qemu-user: the kernels are not tested on 64-bit ARM"; \
	fi

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
