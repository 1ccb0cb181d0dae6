# The two commands: `make demo` and `make test`. Each makes the environments it needs.
PYTHON ?= python3
SERVICE := .venv
WORKER := .venv-ansor
FUZZER := .venv-fuzz
OTHER = .venv-$(notdir $(PYTHON))
TRIALS ?= 128
SEEDS ?= 0 1 2
FEW_SEEDS ?= 0 1
SECONDS ?= 7200
SEED ?= 0
# Each file in it has the figures of one benchmark; docs/results.md is made of them.
RESULTS := benchmarks/results

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast test-python coverage soak fuzz lint types bench bench-long reproduce learning results clean

help: ## show what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-10s %s\n", $$1, $$2}'

setup: $(SERVICE)/.made $(WORKER)/.made ## make the two environments: the service's, and a worker's with TVM 0.19

# Two environments: the service needs no TVM, and TVM with torch in one process crashes (docs/decisions).
$(SERVICE)/.made: pyproject.toml requirements/service.txt
	$(PYTHON) -m venv $(SERVICE)
	$(SERVICE)/bin/python -m pip install -q -c requirements/service.txt -e '.[service,cpu,train,dev]'
	touch $@

$(WORKER)/.made: pyproject.toml requirements/worker.txt
	$(PYTHON) -m venv $(WORKER)
	$(WORKER)/bin/python -m pip install -q -c requirements/worker.txt -e '.[ansor]' pytest pytest-timeout coverage
	touch $@

demo: setup ## two workers tune three operators with real Ansor through the service, which learns meanwhile; JSON=file gets the figures
	$(SERVICE)/bin/python scripts/demo --server-python $(SERVICE)/bin/python --worker-python $(WORKER)/bin/python --trials $(TRIALS) $(if $(JSON),--json $(JSON))

test: setup ## run all tests: the service's, then the worker's with real TVM
	$(SERVICE)/bin/python -m pytest tests --ignore=tests/worker; service=$$?; $(WORKER)/bin/python -m pytest tests/worker && exit $$service

test-fast: setup ## run the tests that take no TVM, no training and no more than about a second each; about a minute
	$(SERVICE)/bin/python -m pytest tests --ignore=tests/worker -m 'not training and not slow'

# Processes of both environments write a file each; a failed test does not keep the report from being printed.
coverage: setup ## run all tests under coverage, child processes included, and fail below the floor of pyproject.toml
	rm -rf .coverage && mkdir .coverage
	$(SERVICE)/bin/python -m coverage run -m pytest tests --ignore=tests/worker; service=$$?; \
	$(WORKER)/bin/python -m coverage run -m pytest tests/worker; worker=$$?; \
	$(SERVICE)/bin/python -m coverage combine -q && $(SERVICE)/bin/python -m coverage report && exit $$((service + worker))

# An environment per interpreter. The pins are those of Python 3.11, so only interpreters that all of them support get these.
test-python: ## run the fast tests on another interpreter: PYTHON=python3.12
	$(PYTHON) -m venv $(OTHER)
	$(OTHER)/bin/python -m pip install -q $(if $(findstring 3.10,$(PYTHON)),,-c requirements/service.txt) -e '.[service,cpu,train,dev]'
	$(OTHER)/bin/python -m pytest tests --ignore=tests/worker -m 'not training and not slow'

soak: setup ## two hours of mixed load on one server: memory and latency, one line per minute; SECONDS=7200
	$(SERVICE)/bin/python tests/chaos/soak.py --seconds $(SECONDS) --out .soak.json

fuzz: setup $(FUZZER)/.made ## 100,000 mutated inputs for all parsers, 10,000 over sockets, schemathesis; about 15 minutes, SEED=0
	$(SERVICE)/bin/python tests/fuzz/fuzz.py parsers --count 100000 --seed $(SEED)
	$(SERVICE)/bin/python tests/fuzz/fuzz.py sockets --count 10000 --seed $(SEED)
	$(SERVICE)/bin/python tests/fuzz/fuzz.py openapi --seed $(SEED) --schemathesis $(FUZZER)/bin/schemathesis

# A separate environment, since schemathesis would change pinned packages of the service.
$(FUZZER)/.made:
	$(PYTHON) -m venv $(FUZZER)
	$(FUZZER)/bin/python -m pip install -q 'schemathesis>=4,<5'
	touch $@

bench: setup ## measure the service beside its peers, about 15 minutes; with LOGS=folder also the record parser beside TVM's
	$(WORKER)/bin/python benchmarks/client_import.py --out $(RESULTS)/client-import.json
	$(WORKER)/bin/python benchmarks/predict.py --server-python $(SERVICE)/bin/python --candidates .bench --out $(RESULTS)/predict.json
	$(SERVICE)/bin/python benchmarks/load.py .bench/0.json --out $(RESULTS)/load.json
	$(SERVICE)/bin/python benchmarks/precision.py tests/data/measured.json --out $(RESULTS)/precision.json
	$(if $(LOGS),$(WORKER)/bin/python benchmarks/parse_logs.py $(LOGS) --out $(RESULTS)/parse-logs.json)

bench-long: setup ## measure predict calls beside measurements, training and swaps of the version, about 20 minutes
	$(SERVICE)/bin/python benchmarks/ingest.py --out $(RESULTS)/ingest.json
	$(SERVICE)/bin/python benchmarks/swap.py --out $(RESULTS)/swap.json

# Each study is a target of its own, so that `OMP_NUM_THREADS=1 make -j2 reproduce …` runs them side by side and repeats none that is done.
R := .reproduce
reproduce: $(RESULTS)/ranking-folds.json $(RESULTS)/ranking-platforms.json $(R)/models.made $(RESULTS)/ranking-few.json ## train and rank all models from raw logs, one to two hours: LOGS=folder of logs, MEASURED=folder, PLATFORMS=csv; rm -r .reproduce to start over

learning: $(RESULTS)/learning-curve.json $(RESULTS)/learning-poison.json ## measure what learning in service gains, from the same raw logs as reproduce

$(R)/records.made: | $(SERVICE)/.made
	$(SERVICE)/bin/python -m pip install -q -c requirements/service.txt -e '.[baselines]'
	rm -rf $(R)/records
	$(SERVICE)/bin/tlp records import $(LOGS) $(MEASURED)/records.json.gz --platforms $(PLATFORMS) --store $(R)/records
	touch $@

$(R)/models.made: $(R)/records.made
	$(SERVICE)/bin/tlp train --records $(R)/records --out $(R)/models
	touch $@

$(RESULTS)/ranking-folds.json: $(R)/records.made
	$(SERVICE)/bin/python benchmarks/ranking.py folds $(R)/records --measured $(MEASURED) --seeds $(SEEDS) --out $@

$(RESULTS)/ranking-platforms.json: $(R)/records.made
	$(SERVICE)/bin/python benchmarks/ranking.py platforms $(R)/records --seeds $(SEEDS) --out $@

$(RESULTS)/ranking-few.json: $(R)/records.made
	$(SERVICE)/bin/python benchmarks/ranking.py few $(R)/records --seeds $(FEW_SEEDS) --out $@

$(RESULTS)/learning-curve.json: $(R)/records.made
	$(SERVICE)/bin/python benchmarks/learning.py curve $(R)/records --targets v100 platinum-8358 x86-24c k80 --seeds $(SEEDS) --out $@

$(RESULTS)/learning-poison.json: $(R)/records.made
	$(SERVICE)/bin/python benchmarks/learning.py poison $(R)/records --targets v100 --out $@

results: setup ## write docs/results.md and its pictures from the figures in benchmarks/results
	$(SERVICE)/bin/python benchmarks/results_page.py

lint: setup ## ruff, and which folder imports which
	$(SERVICE)/bin/ruff check .
	$(SERVICE)/bin/ruff format --check .
	$(SERVICE)/bin/lint-imports

types: setup ## mypy --strict on both packages, and mypy on the modules that the tests share
	$(SERVICE)/bin/mypy
	$(SERVICE)/bin/mypy tests/*.py

clean: ## remove the environments and what the demo left
	rm -rf $(SERVICE) $(WORKER) .venv-python3* .coverage $(FUZZER) .demo .bench .reproduce .soak.json
