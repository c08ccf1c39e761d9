# Every target does its own set-up on a machine that has Python 3.11+ and Java 17+ (and Go for `test-full`).
# Versions come from constraints.txt, their hashes from requirements/; jars and binaries are kept in .cache, packages
# in .venv.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# Without caches of compiled modules each of the hundreds of processes that tests start compiles what it imports.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX ?= $(CURDIR)/.cache/pycache

# The first Python on PATH that is new enough; `make PYTHON=/path/to/python3.12 ...` chooses another.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)
JAVA := $(if $(JAVA_HOME),$(JAVA_HOME)/bin/java,java)
PY := .venv/bin/python
STAMP := .venv/.installed

# The workers of pytest share a broker, and those of `test` a Spark; in `test-full` each starts its own, which takes 1 to
# 2 GiB. Tests wait for half of their time, so two cores are busy with three workers. `make test WORKERS=6` on a machine
# with more cores.
WORKERS ?= 3
PYTEST := $(PY) -m pytest
# `make test ARGS="tests/unit -k roll"`
ARGS ?=
# Which share of the tests that enumerate faults and seeds `test` runs: by chance, and printed. `make test SHARE=3/8`
SHARE ?= $(shell echo $$((RANDOM % 8 + 1)))/8
PARALLEL := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# A version of Spark for `test-spark`, in a venv of its own.
SPARK ?= 3.5.9
SPARK_VENV := .cache/spark-$(SPARK)
# What `pins` and `audit` run, in a venv of its own.
TOOLS := .cache/tools
# What `pages-try` runs, in a venv of its own.
BROWSER := .cache/browser
# What `site` runs, in a venv of its own.
SITE := .cache/site
# pip takes no file whose hash is not in requirements/. The project itself has none, and neither has what it is built with
# if pip fetches that: so what builds comes first, and nothing is built in an environment that pip makes.
PIP_HASHED := -m pip --disable-pip-version-check install --quiet --require-hashes --no-build-isolation
PIP_PROJECT := -m pip --disable-pip-version-check install --quiet --no-deps --no-build-isolation

.PHONY: help venv java go go-programs jars demo test test-durations test-full test-rest mutants test-spark test-kube test-python images-try compose-try pages-try soak lint lint-style lint-types lint-imports lint-tidy bench bench-peers bench-report docs site pictures dist pins audit clean clean-all

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

venv: $(STAMP) ## Make .venv with pinned versions of all that is needed

$(STAMP): pyproject.toml requirements/build.txt requirements/dev.txt
	@if [ -z "$(PYTHON)" ]; then echo "Python 3.11 or newer is needed and was not found on PATH; install it, or say make PYTHON=/path/to/python" >&2; exit 2; fi
	@if [ ! -x $(PY) ]; then echo "making .venv with $(PYTHON)"; \
		$(PYTHON) -m venv .venv || { rm -rf .venv; echo "$(PYTHON) cannot make virtual environments; install its venv module (Debian: python3-venv)" >&2; exit 2; }; fi
	@echo "installing pinned packages into .venv (some minutes the first time: pyspark alone is 450 MB)"
	@$(PY) $(PIP_HASHED) --only-binary :all: -r requirements/build.txt
	@$(PY) $(PIP_HASHED) -r requirements/dev.txt
	@$(PY) $(PIP_PROJECT) -e .
	@touch $@

java:
	@version=$$("$(JAVA)" -version 2>&1 | sed -nE 's/.*version "(1\.)?([0-9]+).*/\2/p' | head -n 1 || true); \
	if [ "$${version:-0}" -lt 17 ]; then \
		echo "Java 17 or newer is needed ($(JAVA) is $${version:-missing}); install a JDK and put it on PATH, or set JAVA_HOME" >&2; exit 2; fi

go:
	@command -v go >/dev/null || { echo "Go is needed to build what these tests run, and was not found on PATH; install Go 1.26 or newer" >&2; exit 2; }

jars: java $(STAMP)
	@$(PY) -m keyfold_demo.java

demo: jars ## The whole story on this machine: Kafka, S3 and Spark on loopback
	@.venv/bin/keyfold demo

test: jars ## Every kind of test in minutes; of tests that enumerate faults and seeds one share of eight
	$(PYTEST) $(PARALLEL) --tier test --share $(SHARE) $(ARGS)

test-durations: ## The same, and seconds for each file and each fixture's set-up at the end
	@$(MAKE) --no-print-directory test ARGS="-p tests.support.durations --durations=20 $(ARGS)"

test-full: java go jars go-programs ## All tests but soaks: every fault and seed, versitygw, Helm, promtool
	$(PYTEST) $(PARALLEL) --tier full $(ARGS)

test-rest: java go jars go-programs ## What `make test` with the same SHARE leaves out of `make test-full`
	$(PYTEST) $(PARALLEL) --tier rest --share $(SHARE) $(ARGS)

go-programs: go $(STAMP)
	@$(PY) -m tests.support.go_program versitygw helm promtool

mutants: jars ## Plant each bug of tests/mutants, and say which test notices it: make mutants ARGS="--only log/*"
	@$(PY) -m tests.support.mutants --workers $(WORKERS) $(ARGS)

test-spark: java $(SPARK_VENV)/.installed ## The compactor's Spark tests with another Spark: make test-spark SPARK=4.0.5
	env -u SPARK_HOME $(SPARK_VENV)/bin/python -m pytest -m any_spark $(ARGS) tests

# Pinned like .venv but for Spark: no hash is known of a version that is asked for here. pyspark comes as source, 300 to
# 450 MB.
$(SPARK_VENV)/.installed: pyproject.toml requirements/build.txt requirements/dev.txt
	@if [ -z "$(PYTHON)" ]; then echo "Python 3.11 or newer is needed and was not found on PATH; install it, or say make PYTHON=/path/to/python" >&2; exit 2; fi
	@echo "installing pyspark $(SPARK) into $(SPARK_VENV)"
	@$(PYTHON) -m venv $(SPARK_VENV)
	@sed -E '/^(pyspark|py4j)==/,/[^\\]$$/d' requirements/dev.txt > $(SPARK_VENV)/requirements.txt
	@$(SPARK_VENV)/bin/python $(PIP_HASHED) --only-binary :all: -r requirements/build.txt
	@$(SPARK_VENV)/bin/python $(PIP_HASHED) -r $(SPARK_VENV)/requirements.txt
	@$(SPARK_VENV)/bin/python -m pip install --quiet --no-build-isolation pyspark==$(SPARK)
	@$(SPARK_VENV)/bin/python $(PIP_PROJECT) -e .
	@touch $@

test-python: $(STAMP) ## The wheel in each supported Python of this machine: bare, and unit tests; make test-python ARGS="--python PATH"
	@$(PY) -m tests.support.pythons $(ARGS)

# Not a part of test-full: two thousand Go packages are compiled for it the first time.
test-kube: go java $(STAMP) ## The chart before a real kube-apiserver with etcd, built by Go once, and Spark's executors there
	@$(PY) -m tests.support.go_program helm kube_apiserver
	@$(PY) -m tests.support.crds
	$(PYTEST) $(ARGS) tests/infra/test_kube_chart.py tests/infra/test_kube_spark.py

images-try: jars ## Build both images without docker, as root with buildah and debootstrap, and start what is in them
	@$(PY) -m tests.support.images

compose-try: go jars ## Run infra/compose as a whole without docker, as root with podman and Docker's Compose built by Go
	@$(PY) -m tests.support.compose $(ARGS)

pages-try: $(STAMP) $(BROWSER)/.installed ## Drive the pages of `keyfold serve` in the system's Chromium: keyboard, axe-core, screenshots
	@$(PY) -m tests.support.browser $(ARGS)

$(BROWSER)/.installed: requirements/browser.txt
	@if [ -z "$(PYTHON)" ]; then echo "Python 3.11 or newer is needed and was not found on PATH; install it, or say make PYTHON=/path/to/python" >&2; exit 2; fi
	@command -v chromium >/dev/null || { echo "Chromium is needed and was not found on PATH (Debian: apt install chromium)" >&2; exit 2; }
	@$(PYTHON) -m venv $(BROWSER)
	@$(BROWSER)/bin/python $(PIP_HASHED) --only-binary :all: -r $<
	@touch $@

soak: java go jars $(SPARK_VENV)/.installed ## Long storms: kills, fights and pauses for many minutes
	@$(PY) -m tests.support.go_program versitygw
	$(PYTEST) -m soak --timeout 7200 $(ARGS)

lint: lint-style lint-types lint-imports lint-tidy ## ruff, mypy, import-linter and the tidy test

lint-style: $(STAMP)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check --quiet .

lint-types: $(STAMP)
	$(PY) -m mypy

lint-imports: $(STAMP)
	.venv/bin/lint-imports --no-logo

lint-tidy: $(STAMP)
	$(PYTEST) -q -p no:randomly tests/unit/test_tidy.py

bench-peers: go jars $(SPARK_VENV)/.installed ## keyfold end to end beside Delta, Iceberg and Hudi on Spark: make bench-peers ARGS="--changes 200000"
	@$(SPARK_VENV)/bin/python -m tests.support.go_program versitygw
	@env -u SPARK_HOME $(SPARK_VENV)/bin/python -m tests.bench.peers $(ARGS)

bench: java go jars $(SPARK_VENV)/.installed ## Measure what README.md quotes, as JSON in build/bench; make bench ARGS=--quick
	@$(PY) -m tests.support.go_program versitygw
	@PEERS_PYTHON=$(CURDIR)/$(SPARK_VENV)/bin/python $(PY) -m tests.bench.report.run $(ARGS)

bench-report: $(STAMP) ## Make the charts and tables of README.md and docs/benchmarks.md of what `make bench` measured
	@$(PY) -m tests.bench.report.pages $(ARGS)

docs: $(STAMP) ## Write docs/configuration.md, the tables of the metrics pages and the chart's README from their sources
	$(PY) -m tests.support.configuration_docs
	$(PY) -m tests.support.metrics_docs
	$(PY) -m tests.support.operations_docs
	$(PY) -m tests.support.grafana_dashboard
	$(PY) -m tests.support.chart_docs

site: $(SITE)/.installed ## Build the documentation as a searchable site into site/; a broken link is an error
	@$(SITE)/bin/python -m sphinx -q -W --keep-going -b html -c infra/site . site
	@echo "open site/index.html"

$(SITE)/.installed: requirements/site.txt
	@if [ -z "$(PYTHON)" ]; then echo "Python 3.11 or newer is needed and was not found on PATH; install it, or say make PYTHON=/path/to/python" >&2; exit 2; fi
	@$(PYTHON) -m venv $(SITE)
	@$(SITE)/bin/python $(PIP_HASHED) --only-binary :all: -r $<
	@touch $@

pictures: java $(STAMP) ## Write docs/images/*.svg from docs/diagrams/*.puml and from a run of the demo
	@$(PY) -m tests.support.pictures

dist: $(STAMP) ## Build wheel, sdist and what spark-submit is given into dist/
	@rm -rf dist
	@$(PY) -m build --no-isolation
	@$(PY) -m keyfold_compactor.spark.code_zip dist
	@ls -l dist

pins: $(TOOLS)/.installed ## Write the hashes in requirements/ for the versions in constraints.txt (asks the package index)
	@$(TOOLS)/bin/python -m tests.support.pins

audit: $(TOOLS)/.installed ## Look up known vulnerabilities of the pinned versions (online); exit code 3: could not be looked up
	@$(TOOLS)/bin/python -m tests.support.audit $(ARGS)

$(TOOLS)/.installed: requirements/tools.txt
	@if [ -z "$(PYTHON)" ]; then echo "Python 3.11 or newer is needed and was not found on PATH; install it, or say make PYTHON=/path/to/python" >&2; exit 2; fi
	@$(PYTHON) -m venv $(TOOLS)
	@$(TOOLS)/bin/python $(PIP_HASHED) --only-binary :all: -r $<
	@touch $@

clean: ## Remove what was built, and the caches of the tools
	rm -rf dist build site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +

clean-all: clean ## Also remove .venv and .cache
	rm -rf .venv .cache
