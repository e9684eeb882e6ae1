# One target per job; each does its own set-up. Needed: make, and Python 3.10 to 3.13 with venv (PYTHON= picks one).
PYTHONS := python3.11 python3.12 python3.13 python3.10 python3
PYTHON ?= $(shell for p in $(PYTHONS); do $$p -c 'import sys, venv; raise SystemExit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ENGINES ?= $(or $(DRAINAGENT_ENGINES),$(HOME)/.cache/drainagent/engines)
FUZZ_S ?= 60
# A worker for each core, a file's tests in one of them: whole hooks that mostly wait beside tests that compute.
PARALLEL ?= -n auto --dist loadfile
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo try test test-api test-routers test-pythons test-engines test-images test-tools test-cluster \
  test-engine-pods test-protocol test-operator fuzz lint bench bench-render bench-retirement bench-operator bench-tree docs measured agent-tree images cluster cluster-down clean
.DEFAULT_GOAL := help

help: ## this list
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/:[^#]*## /\t/' | expand -t 16

$(READY): pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.10 to 3.13 with the venv module is needed; PYTHON=/path/to/python picks one" >&2; exit 1; }
	@echo "setting up $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install -q -e '.[test,lint]'
	@touch $@

demo: $(READY) ## an embedded engine, the real hook, the timeline drawn live (DEMO="--engine sglang --grace 20")
	@$(BIN)/drainagent demo $(DEMO)

try: $(READY) cluster ## a real Kubernetes on this machine: a Pod deleted under load without and with the hook (a minute once built; root)
	@$(BIN)/python tests/cluster/try_it.py

test: $(READY) ## the default test run, below 5 minutes (TEST="-k page" for a part)
	$(BIN)/python -m pytest $(PARALLEL) $(TEST)

test-pythons: ## the tests but the three of hooks against the clock, on every other Python from 3.10 to 3.13 that is here
	tests/pythons.sh

test-engines: $(READY) ## installs real vLLM and SGLang (cached) and runs the hook against them (ENGINE_TESTS="--short")
	tests/engines/setup.sh both $(ENGINES)
	DRAINAGENT_ENGINES=$(ENGINES) $(BIN)/python -m pytest tests/engines/test_argv_agreement.py
	DRAINAGENT_ENGINES=$(ENGINES) $(BIN)/python -m pytest tests/operator/engines
	DRAINAGENT_ENGINES=$(ENGINES) $(BIN)/python tests/engines/run.py $(ENGINE_TESTS)

test-images: $(READY) ## builds the agent's tree and the images and runs them, as root (images/README.md: what it needs)
	$(BIN)/python -m pytest tests/images $(TEST)

test-tools: $(READY) ## inject behind Helm 3, Helm 4 and kustomize (built once, 4 minutes; needs Go 1.26)
	tests/tools/setup.sh
	$(BIN)/python -m pytest tests/tools $(TEST)

test-cluster: $(READY) cluster ## the hook on a real kubelet, the stand-in engine in the Pods (5 minutes once built; images/README.md)
	$(BIN)/python -m pytest tests/cluster/test_cluster.py tests/cluster/hook tests/cluster/engines/test_judge.py $(TEST)

test-engine-pods: $(READY) cluster ## real vLLM and SGLang in Pods, behind stock routers too (ENGINE_TESTS=--short: 8 minutes)
	tests/engines/setup.sh both $(ENGINES)
	tests/cluster/engines/setup.sh
	$(BIN)/python tests/cluster/hook/images.py
	DRAINAGENT_ENGINES=$(ENGINES) $(BIN)/python tests/cluster/engines/run.py $(ENGINE_TESTS)

cluster: ## a real one-node Kubernetes on this machine, as root (built once, 10 minutes; needs Go 1.25); prints how to use it
	tests/cluster/setup.sh
	tests/cluster/cluster.sh up

cluster-down: ## ends it; exit status 1 when anything is left
	tests/cluster/cluster.sh down

test-api: $(READY) ## ModelDeployment's definition and what is rendered, on a real API server (2 minutes once built; root)
	tests/cluster/setup.sh
	tests/cluster/cluster.sh status >/dev/null 2>&1 || tests/cluster/cluster.sh up --api-only
	$(BIN)/python -m pytest tests/operator/api $(TEST)

test-routers: $(READY) ## stock vllm-router and sglang-router (installed, cached) run with the command lines that are rendered
	tests/cluster/engines/setup.sh
	$(BIN)/python -m pytest tests/operator/routers tests/operator/test_routers.py $(TEST)

test-protocol: $(READY) cluster ## the retirement protocol: explored in full, then member reads and routers on the real cluster (root)
	DRAINAGENT_EXPLORE=full $(BIN)/python -m pytest -n auto tests/operator/retirement/test_explorer.py tests/operator/retirement/test_stateful.py $(TEST)
	tests/cluster/engines/setup.sh
	$(BIN)/python tests/cluster/hook/images.py
	$(BIN)/python -m pytest tests/operator/protocol $(TEST)

test-operator: $(READY) cluster ## the operator end to end on the real cluster, stock routers and real engines (OPERATOR_TESTS=--short; root)
	tests/cluster/engines/setup.sh
	tests/engines/setup.sh both $(ENGINES)
	DRAINAGENT_ENGINES=$(ENGINES) $(BIN)/python tests/operator/e2e/run.py $(OPERATOR_TESTS)

fuzz: $(READY) ## coverage-guided fuzzers, FUZZ_S seconds each (60)
	-@$(BIN)/pip install -q -e '.[fuzz]'
	$(BIN)/python tests/fuzz/fuzz_page.py -max_total_time=$(FUZZ_S)
	$(BIN)/python tests/fuzz/fuzz_sockets.py -max_total_time=$(FUZZ_S)

lint: $(READY) ## ruff, mypy strict, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	MYPYPATH=images/agent-tree $(BIN)/mypy images/agent-tree/build.py images/agent-tree/debian_python.py images/standin/build_root.py
	MYPYPATH=images/agent-tree $(BIN)/mypy images/operator/build_root.py images/operator/lock.py
	$(BIN)/lint-imports

bench: $(READY) ## CPU, memory and latency beside an inline urllib hook (BENCH="--quick")
	$(BIN)/python benchmarks/run.py $(BENCH)

bench-render: $(READY) ## CPU of rendering the largest ModelDeployment
	$(BIN)/python -m benchmarks.render $(BENCH)

bench-retirement: $(READY) ## CPU of one pass of the retirement protocol over the largest ModelDeployment
	$(BIN)/python -m benchmarks.retirement_step $(BENCH)

bench-operator: $(READY) ## CPU of one pass of the operator over the largest ModelDeployment, beside the protocol's
	$(BIN)/python -m benchmarks.operator_pass $(BENCH)

bench-tree: $(READY) ## the agent's folder: start-up CPU on a read-only mount, the init container's copy, sizes (as root)
	$(BIN)/python -m benchmarks.agent_tree $(BENCH)

docs: $(READY) ## docs/reference.md from the code, docs/measured.md from the kept reports
	$(BIN)/python docs/generate.py

measured: $(READY) ## measures anew what docs/measured.md quotes (an hour)
	mkdir -p build
	-DRAINAGENT_ENGINES=$(ENGINES) $(BIN)/python tests/engines/run.py --report build/engines.json $(ENGINE_TESTS)
	-$(BIN)/python benchmarks/run.py --report build/bench.json $(BENCH)
	-$(BIN)/python -m benchmarks.agent_tree --report build/agent-tree.json $(BENCH)
	-DRAINAGENT_CLUSTER_REPORT=$(CURDIR)/build/kubelet.json $(BIN)/python -m pytest tests/cluster/hook
	-$(BIN)/python tests/cluster/engines/run.py --report build/engine-pods.json $(ENGINE_TESTS)
	$(BIN)/python docs/generate.py $(foreach name,engines bench agent-tree kubelet engine-pods,$(name)=build/$(name).json)

agent-tree: $(READY) ## build/agent-tree, the agent as one folder (PYTHON_INSIDE=1: with an interpreter; TREE="--require-all")
	$(BIN)/python images/agent-tree/build.py $(if $(PYTHON_INSIDE),--with-python) $(TREE)

images: $(READY) ## the images, with buildah (IMAGES="--archive build/archives carrier")
	PYTHON=$(BIN)/python images/build.sh $(or $(IMAGES),all)

clean: ## the virtual environments and caches of this folder
	rm -rf .venv .venv-* build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
