# Needs only Python and make. SPECULANT_DATA may name a folder with recorded traces and texts for tests and benchmarks.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Python compiles what is imported when it is; compiling every file of every package takes longer than the installation.
PIP    := $(BIN)/pip install -q --disable-pip-version-check --no-compile

.PHONY: setup demo test suite test-slow test-all test-everything test-architectures lint typecheck kernels further-kernels \
	native checks test-oldest test-peers test-llamacpp test-sglang test-vllm benchmark-vllm benchmark-vllm-heads test-browser \
	screenshots test-clients test-fuzz docs notebooks wheel clean

setup: $(VENV)/.ready
$(BIN)/pip:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.ready: pyproject.toml constraints.txt | $(BIN)/pip
	$(PIP) -c constraints.txt setuptools
	$(PIP) --no-build-isolation -c constraints.txt -e '.[dev]'
	@touch $@

demo: setup
	@$(BIN)/speculant demo

# Processes keep the bytecode of what they import for those after them: PyTorch's alone takes ten seconds to compile.
unexport PYTHONDONTWRITEBYTECODE

# A process per core, a thread per process; processes that find no kernels compile them alone.
SERIAL := OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 $(BIN)/pytest
PYTEST := $(SERIAL) -n auto --dist worksteal

# What is compiled once and kept in .pytest_cache: kernels of drafters and sizes, and the C++ code. Processes that begin
# together would compile the same ones side by side, so `mix` compiles its own on one core, and the others on the other.
kernels: setup
	$(SERIAL) tests/api/test_bases.py::test_a_named_base_is_used_and_changes_no_text

further-kernels: setup
	$(SERIAL) tests/drafters/test_contract.py::test_limits_waste_no_nodes -k 'not mix'

native: setup
	$(SERIAL) tests/engines/hf/cpu/test_accelerate.py::test_other_layers_are_left_alone \
		tests/sizing/test_policy.py::test_no_round_waits_for_a_compiler

checks: kernels lint further-kernels typecheck native

test: setup
	$(MAKE) -j 2 checks
	$(MAKE) suite

suite: setup
	$(PYTEST)

test-slow: setup
	$(PYTEST) -m 'slow and not peers'

# Both in one run, so that each process imports once.
test-all: setup
	$(MAKE) -j 2 checks
	$(PYTEST) -m 'not matrix and not sglang and not browser and not clients and not fuzz'

# All that continuous integration runs and what it omits to save time: slow tests, the oldest transformers, peers.
test-everything: $(VENV)/.llamacpp
	$(MAKE) test-all
	$(MAKE) test-oldest
	$(MAKE) test-peers

# Every causal architecture of transformers against its own generate: half an hour on two cores.
test-architectures: setup
	$(PYTEST) -m matrix

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

typecheck: setup
	$(BIN)/mypy

# The oldest supported transformers and what it needs, in a folder that is found before the same packages of $(VENV).
.oldest/.ready: $(VENV)/.ready constraints-oldest.txt
	$(PIP) --no-deps --upgrade --target .oldest -r constraints-oldest.txt
	@touch $@

# What meets classes of transformers: kernels, drafters, rules, llama.cpp and Ctrl-C in our own lines do not.
OLDEST := tests/engines/hf tests/decoding tests/api/test_speculator.py tests/test_stories.py
APART  := $(addprefix tests/engines/hf/,quantized test_interrupts.py $(patsubst %,cpu/test_%.py,packing measuring \
	quantized quantized_layers head_code huge_pages kernel_table packaged)) \
	$(patsubst %,tests/decoding/test_%.py,branches speculative_sampling interrupts pauses)
test-oldest: .oldest/.ready
	PYTHONPATH=.oldest $(PYTEST) $(OLDEST) $(addprefix --ignore ,$(APART))

# Against the official ADED drafter and Arctic's suffix tree, and heads against their authors' classes. Arctic's is built
# from source with the torch that is here; left to itself, its build would fetch another one. The heads' packages require
# what their training needs; their classes do with less.
$(VENV)/.peers: $(VENV)/.ready
	$(PIP) --no-build-isolation -c constraints.txt -e '.[dev,peers]'
	$(PIP) -c constraints.txt cmake grpcio-tools nanobind ninja
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) --no-build-isolation --no-deps \
		-c constraints.txt arctic-inference
	$(PIP) -c constraints.txt datasets loguru openai pydantic-settings
	$(PIP) --no-deps -c constraints.txt eagle-llm hs-connectors medusa-llm \
		specforge speculators
	@touch $@

test-peers: $(VENV)/.peers
	$(BIN)/pytest -m peers tests/bench tests/drafters

# GGUF models by llama.cpp. It is built from source, which takes minutes, into a wheel, which can be done while packages
# are installed. The tests need neither its parts for images and for its own programs nor its speed.
# Its AMX code ends with an illegal instruction on some virtual machines.
NO_AMX := $(if $(filter x86_64,$(shell uname -m)),-mno-amx-tile -mno-amx-int8 -mno-amx-bf16)
LLAMACPP := -DLLAVA_BUILD=OFF -DCMAKE_PROJECT_INCLUDE_BEFORE=$(CURDIR)/tests/engines/llamacpp/quick_build.cmake \
	-DCMAKE_C_FLAGS_RELEASE='-O1 -DNDEBUG $(NO_AMX)' -DCMAKE_CXX_FLAGS_RELEASE='-O1 -DNDEBUG $(NO_AMX)'
build/llamacpp: constraints.txt tests/engines/llamacpp/quick_build.cmake | $(BIN)/pip
	rm -rf $@
	CMAKE_ARGS="$(LLAMACPP)" $(BIN)/pip wheel -q --disable-pip-version-check --no-deps -c constraints.txt \
		--wheel-dir $@ llama-cpp-python
	@touch $@

$(VENV)/.llamacpp: $(VENV)/.ready build/llamacpp
	$(PIP) -c constraints.txt build/llamacpp/*.whl gguf
	@touch $@

test-llamacpp: $(VENV)/.llamacpp
	$(PYTEST) tests/engines/llamacpp tests/engines/hf/quantized/gguf tests/engines/hf/quantized/test_rounding.py \
		tests/api/test_gguf.py tests/api/test_gguf_engine.py tests/cli/test_gguf.py tests/cli/test_gguf_output.py \
		tests/bench/systems/test_llamacpp.py

# Against SGLang's own interface classes, which need neither its kernels nor a GPU; they lie in a folder of their own.
.sglang/.ready: $(VENV)/.ready constraints-sglang.txt
	$(PIP) --no-deps --upgrade --target .sglang -r constraints-sglang.txt
	@touch $@

test-sglang: .sglang/.ready
	PYTHONPATH=.sglang $(SERIAL) -m sglang tests/integrations/test_sglang.py \
		tests/integrations/test_sglang_seam.py

# vLLM in an environment of its own: 4 GB, a minute or two to install. The drafters that vLLM calls `suffix` are Arctic's
# and are built from source with the torch that is here; left to itself, their build would fetch another one.
VLLM := .venv-vllm/bin
.venv-vllm/.ready: pyproject.toml constraints-vllm.txt
	$(PYTHON) -m venv .venv-vllm
	$(VLLM)/pip install -q --disable-pip-version-check --no-deps -r constraints-vllm.txt
	PATH="$(CURDIR)/$(VLLM):$$PATH" $(VLLM)/pip install -q --disable-pip-version-check --no-build-isolation --no-deps \
		arctic-inference==0.3.0
	$(VLLM)/pip install -q --disable-pip-version-check --no-build-isolation --no-deps -e .
	@touch $@

# Each run of vLLM is a process, which takes half a minute to start; kernels are cached apart from other environments'.
VLLM_ENV := OMP_NUM_THREADS=1 NUMBA_CACHE_DIR=$(CURDIR)/.venv-vllm/kernels
test-vllm: .venv-vllm/.ready
	$(VLLM_ENV) $(VLLM)/pytest -o filterwarnings= tests/integrations/test_vllm_seam.py tests/integrations/vllm_engine.py

benchmark-vllm: .venv-vllm/.ready
	$(VLLM_ENV) $(VLLM)/python benchmarks/vllm_engine.py -o benchmarks/results/vllm.json

benchmark-vllm-heads: .venv-vllm/.ready
	$(VLLM_ENV) $(VLLM)/python benchmarks/vllm_heads.py -o benchmarks/results/vllm-heads.json

# The page of `speculant serve` in the system's Chromium; screenshots are kept in .screenshots, or go into the docs.
$(VENV)/.browser: $(VENV)/.ready
	$(PIP) -c constraints.txt playwright axe-playwright-python pillow
	@touch $@

test-browser: $(VENV)/.browser
	$(SERIAL) -m browser tests/serving/browser

screenshots: $(VENV)/.browser
	DOC_IMAGES=$(CURDIR)/docs/images $(SERIAL) -m browser tests/serving/browser

# LangChain, `transformers chat`, lm-evaluation-harness and agents against the server; Codex and Claude Code where their
# commands are installed.
$(VENV)/.clients: $(VENV)/.ready
	$(PIP) --no-build-isolation -c constraints.txt -e '.[dev,clients]'
	@touch $@

test-clients: $(VENV)/.clients
	$(SERIAL) -m clients tests/serving/test_other_clients.py tests/serving/test_evaluation_harness.py \
		tests/serving/test_agents.py

# The server against its own OpenAPI schema: some thousand generated requests, a minute or two.
$(VENV)/.fuzz: $(VENV)/.ready
	$(PIP) --no-build-isolation -c constraints.txt -e '.[dev,fuzz]'
	@touch $@

test-fuzz: $(VENV)/.fuzz
	$(SERIAL) -m fuzz tests/serving/test_fuzz.py

# The documentation as a site in build/site; a warning, such as of a link that leads nowhere, is an error. Notebooks call
# `speculant`; the site executes those that are new or changed, `make notebooks` all of them.
$(VENV)/.docs: $(VENV)/.ready
	$(PIP) --no-build-isolation -c constraints.txt -e '.[dev,docs]'
	@touch $@

# Kernels that tests have compiled serve notebooks, too.
KERNELS = $(firstword $(shell ls -td .pytest_cache/kernels-* 2>/dev/null))
DOCS_ENV = OMP_NUM_THREADS=1 PATH="$(CURDIR)/$(BIN):$$PATH" XDG_CACHE_HOME=$(CURDIR)/.pytest_cache/cache \
	$(if $(KERNELS),NUMBA_CACHE_DIR=$(CURDIR)/$(KERNELS))
docs: $(VENV)/.docs
	$(DOCS_ENV) sphinx-build -c docs --fresh-env --fail-on-warning --keep-going --quiet . build/site

notebooks: $(VENV)/.docs
	$(DOCS_ENV) jupyter execute docs/notebooks/*.ipynb

# A wheel with compiled code for each level of instruction sets, or for those of LEVELS=avx2,avx512, in dist.
LEVELS ?= all
wheel: setup
	rm -rf build/lib* build/bdist*
	$(BIN)/pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation \
		--config-settings=--build-option=--levels=$(LEVELS) --wheel-dir dist .

clean:
	rm -rf dist $(VENV) .oldest .venv-vllm .sglang .screenshots build *.egg-info src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
