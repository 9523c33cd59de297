# The few things one does with this project. What each needs installs itself first: Python's into
# .venv, the rest into build.
PYTHON ?= python3
BIN := .venv/bin
OUT ?= demo-out

CONTROLPLANE := build/controlplane
SDK := build/sdk
MOVIELENS := build/movielens
INTEGRATIONS := build/integrations
SITE := build/site-tools

.PHONY: help demo check pure test test-gpu test-simulated-gpu test-integrations e2e controlplane neighbours controllers sdk lint bench \
  experiments movielens proto requirements release chart-check monitoring site clean

help: ## says what each target does
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: .venv/ready ## two jobs share two virtual nodes of 2 GPUs on this machine, in under two minutes
	$(BIN)/volcano-elastic demo --out $(OUT)

# Tests run in JOBS processes, of a GB each: six on two cores, as many tests only wait. Those that
# would meet share one, and those that wait run beside those that compute (conftest.py).
JOBS ?= 6
PYTEST = $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup --no-loadscope-reorder

# Lint beside the tests: mypy takes one core for most of a minute where nothing is cached.
check: .venv/ready ## before each commit: lint, types and the tests that start no process, in two minutes
	@$(MAKE) --no-print-directory -j 2 lint pure

pure: .venv/ready
	$(BIN)/python -m pytest -n 3 --dist load -m "not process" --no-processes --hypothesis-profile quick tests

test: .venv/ready $(SDK)/ready $(SITE)/ready ## every test, the end-to-end ones on the embedded cluster included
	$(PYTEST)

# One GPU is enough, as NCCL (2.30 at least) lets ranks share it; without any they are skipped.
test-gpu: .venv/ready ## the trainer's tests on CUDA and NCCL, on a machine with a GPU
	$(BIN)/python -m pytest -m gpu -rs -v tests

test-simulated-gpu: .venv/ready ## the same tests on GPUs that are simulated in memory, but for kernels
	$(BIN)/python -m tests.simulated_gpu --delay 5000 --spills $(BIN)/python -m pytest -rs -m gpu -n 4 tests/elastic_trainer

# With Hugging Face's, Lightning's and torchdata's libraries.
test-integrations: $(INTEGRATIONS)/ready ## the tests of the optional extras, in an environment of their own
	$(INTEGRATIONS)/bin/python -m pytest tests/elastic_trainer/integrations

$(INTEGRATIONS)/ready: .venv/ready tests/elastic_trainer/integrations-requirements.txt
	$(BIN)/uv venv -q --clear --python $(BIN)/python $(INTEGRATIONS)
	$(BIN)/uv pip install -q --python $(INTEGRATIONS)/bin/python --require-hashes \
	  -r tests/elastic_trainer/integrations-requirements.txt
	$(BIN)/uv pip install -q --python $(INTEGRATIONS)/bin/python --no-deps --no-build-isolation -e . -e trainer
	touch $@

# etcd, kube-apiserver and kube-controller-manager from their Go modules: minutes once, then nothing.
controlplane: $(CONTROLPLANE)/ready ## builds the real control plane

$(CONTROLPLANE)/ready: $(wildcard e2e/controlplane/*/go.*) e2e/controlplane/build
	e2e/controlplane/build $(CONTROLPLANE)
	touch $@

# From their Go modules; nothing is built.
NEIGHBOURS := build/neighbours
neighbours: $(NEIGHBOURS)/ready ## gets the CRDs of JobSet, Kubeflow Trainer and Kueue, for their tests

$(NEIGHBOURS)/ready: $(wildcard e2e/neighbours/*)
	e2e/neighbours/crds $(NEIGHBOURS)
	touch $@

# From their Go modules, pinned by Go's checksums: ten minutes once on two cores, then nothing.
CONTROLLERS := build/controllers
controllers: $(CONTROLLERS)/ready ## builds Kueue's and JobSet's own controllers, for the tests beside them

$(CONTROLLERS)/ready: $(wildcard e2e/neighbours/go.* e2e/neighbours/jobset/go.*) e2e/neighbours/build
	e2e/neighbours/build $(CONTROLLERS)
	touch $@

# The end-to-end suite; see e2e/README.md. The real Volcano needs a real API server.
named_on_command_line = $(findstring command line,$(origin KUBECONFIG))
PLANES ?= $(if $(named_on_command_line),kubeconfig,$(if $(VOLCANO_BIN),real,real embedded))
e2e: .venv/ready sdk neighbours $(if $(filter real,$(PLANES)),controlplane) ## the end-to-end suite on a real kube-apiserver and the embedded one
	set -e; for plane in $(PLANES); do $(PYTEST) e2e embedded_cluster/conformance --control-plane $$plane $(if $(MARKS),-m "$(MARKS)"); done

lint: .venv/ready ## ruff, mypy and import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# BENCH names some of them, e.g. `make bench BENCH=operator`; `python -m benchmarks.NAME --help` says
# what each measures and takes. The figures want a machine that does nothing else; operator and
# trainer take minutes.
BENCH ?= planner leases checkpoint operator trainer
bench: .venv/ready ## the benchmarks, or those that BENCH names
	set -e; for name in $(BENCH); do $(BIN)/python -m benchmarks.$$name; done

# Both wheels and the chart into dist/VERSION, from the last commit; then a commit and a tag, here.
release: .venv/ready ## `make release VERSION=0.2.0` builds, dates the changelog, tags; publishes nothing
	$(BIN)/python deploy/release.py $(VERSION) $(if $(URL),--url $(URL))

# Helm from its Go module: minutes once, then nothing.
HELM_VERSION := v3.19.0
HELM := build/helm/helm
chart-check: .venv/ready controlplane $(HELM) ## the Helm chart: lint, beside kustomize, on a real kube-apiserver
	$(BIN)/python -m pytest tests/documents/test_chart.py e2e/test_chart.py --control-plane real

$(HELM):
	GOBIN=$(abspath build/helm) go install helm.sh/helm/v3/cmd/helm@$(HELM_VERSION)

monitoring: .venv/ready ## writes Grafana's dashboards and Prometheus' rules anew
	$(BIN)/python -m deploy.monitoring

# In an environment of its own; nothing is fetched when it is looked at.
site: $(SITE)/ready ## the documents as a site, with a reference of commands, fields and the trainer
	$(BIN)/python -m deploy.site build/site-source
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build -q --strict
	@echo "open build/site/index.html"

$(SITE)/ready: .venv/ready deploy/site-requirements.txt
	$(BIN)/uv venv -q --clear --python $(BIN)/python $(SITE)
	$(BIN)/uv pip install -q --python $(SITE)/bin/python --require-hashes -r deploy/site-requirements.txt
	touch $@

# Hours of traces in minutes; SECTIONS names some of them, TRACES the folder of the traces.
TRACES ?= ../shared/traces
experiments: .venv/ready movielens ## writes docs/experiments.md anew: half an hour and more
	$(BIN)/python -m experiments $(SECTIONS) --traces $(TRACES) --doc docs/experiments.md

# The ratings that one of them trains on.
movielens: $(MOVIELENS)/ready ## gets the ratings that an experiment trains on

$(MOVIELENS)/ready: .venv/ready experiments/movielens/requirements.txt
	$(BIN)/uv pip install -q --python $(BIN)/python --target $(MOVIELENS) --no-deps \
	  --require-hashes -r experiments/movielens/requirements.txt
	touch $@

proto: .venv/ready ## generates the code of the trainer's .proto files
	$(BIN)/python -m grpc_tools.protoc -Itrainer --python_out=trainer --pyi_out=trainer \
	  --grpc_python_out=trainer trainer/elastic_trainer/proto/*.proto

# Pinned with hashes, and naming no index: any mirror that serves the same files will do.
COMPILE := $(BIN)/uv pip compile -q --generate-hashes --no-emit-index-url --no-emit-find-links \
  --no-header --no-annotate --universal -p 3.11
requirements: ## pins all dependencies anew
	$(COMPILE) --extra dev --extra fsspec pyproject.toml trainer/pyproject.toml -o requirements.txt
	$(COMPILE) --extra operator --extra dashboard --extra tracing --extra brain -c requirements.txt pyproject.toml -o deploy/operator-requirements.txt
	$(COMPILE) -c requirements.txt trainer/pyproject.toml -o deploy/trainer-requirements.txt
	$(COMPILE) --extra dev --extra hf --extra lightning --extra torchdata --extra fsspec \
	  -c requirements.txt pyproject.toml trainer/pyproject.toml \
	  -o tests/elastic_trainer/integrations-requirements.txt
	echo 'setuptools>=77' | $(COMPILE) -c requirements.txt - -o deploy/build-requirements.txt
	$(COMPILE) --extra site -c requirements.txt pyproject.toml -o deploy/site-requirements.txt
	$(COMPILE) e2e/sdk/requirements.in -o e2e/sdk/requirements.txt
	$(COMPILE) --no-deps experiments/movielens/requirements.in \
	  -o experiments/movielens/requirements.txt

.venv/ready: requirements.txt pyproject.toml trainer/pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --disable-pip-version-check uv
	$(BIN)/uv pip install -q --python $(BIN)/python --require-hashes -r requirements.txt
	$(BIN)/uv pip install -q --python $(BIN)/python --no-deps --no-build-isolation -e . -e trainer
	@echo "compiling what was installed, which each pod would else do at once (half a minute)"
	-$(BIN)/python -m compileall -qq -j 0 -x '/(tests?|testing)/' .venv/lib
	touch $@

# The SDK that users have, apart from ours: it can't live with the newest kubernetes package.
sdk: $(SDK)/ready ## installs the SDK that users of PyTorchJobs have

$(SDK)/ready: .venv/ready e2e/sdk/requirements.txt
	$(BIN)/uv venv -q --clear --python $(BIN)/python $(SDK)
	$(BIN)/uv pip install -q --python $(SDK)/bin/python --require-hashes -r e2e/sdk/requirements.txt
	touch $@

clean: ## removes what was installed and built
	rm -rf .venv demo-out build dist
