# The two commands: `make demo` and `make test`. Each makes the environments it needs.
PYTHON ?= python3
SERVICE := .venv
WORKER := .venv-ansor
FUZZER := .venv-fuzz
TRIALS ?= 128
SEEDS ?= 0 1 2
FEW_SEEDS ?= 0 1
SECONDS ?= 7200
SEED ?= 0

.DEFAULT_GOAL := help
.PHONY: help setup demo test soak fuzz lint types bench reproduce clean

help: ## show what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-9s %s\n", $$1, $$2}'

setup: $(SERVICE)/.made $(WORKER)/.made ## make the two environments: the service's, and a worker's with TVM 0.19

# Two environments: the service needs no TVM, and TVM with torch in one process crashes (docs/decisions).
$(SERVICE)/.made: pyproject.toml requirements/service.txt
	$(PYTHON) -m venv $(SERVICE)
	$(SERVICE)/bin/python -m pip install -q -c requirements/service.txt -e '.[service,cpu,train,dev]'
	touch $@

$(WORKER)/.made: pyproject.toml requirements/worker.txt
	$(PYTHON) -m venv $(WORKER)
	$(WORKER)/bin/python -m pip install -q -c requirements/worker.txt -e '.[ansor]' pytest pytest-timeout
	touch $@

demo: setup ## two workers tune three operators with real Ansor through the service, which learns meanwhile
	$(SERVICE)/bin/python scripts/demo --server-python $(SERVICE)/bin/python --worker-python $(WORKER)/bin/python --trials $(TRIALS)

test: setup ## run all tests: the service's, then the worker's with real TVM
	$(SERVICE)/bin/python -m pytest tests --ignore=tests/worker; service=$$?; $(WORKER)/bin/python -m pytest tests/worker && exit $$service

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

bench: setup ## figures beside a peer's, some 15 minutes; with LOGS=folder also the record parser against TVM's
	$(WORKER)/bin/python benchmarks/client_import.py
	$(WORKER)/bin/python benchmarks/predict.py --server-python $(SERVICE)/bin/python --out .bench
	$(SERVICE)/bin/python benchmarks/load.py .bench/0.json --out .bench/load.json
	$(SERVICE)/bin/python benchmarks/precision.py tests/data/measured.json
	$(if $(LOGS),$(WORKER)/bin/python benchmarks/parse_logs.py $(LOGS))

# Each study is a target of its own, so that they run side by side (OMP_NUM_THREADS=1 make -j2 reproduce …) and what is done is not done again.
R := .reproduce
reproduce: $(R)/folds.json $(R)/platforms.json $(R)/models.made $(R)/few.json ## from raw logs to all figures of the models, an hour or two: LOGS=folder of logs, MEASURED=folder, PLATFORMS=csv; rm -r .reproduce to begin anew

$(R)/records.made: | $(SERVICE)/.made
	$(SERVICE)/bin/python -m pip install -q -c requirements/service.txt -e '.[baselines]'
	rm -rf $(R)/records
	$(SERVICE)/bin/tlp records import $(LOGS) $(MEASURED)/records.json.gz --platforms $(PLATFORMS) --store $(R)/records
	touch $@

$(R)/models.made: $(R)/records.made
	$(SERVICE)/bin/tlp train --records $(R)/records --out $(R)/models
	touch $@

$(R)/folds.json: $(R)/records.made
	$(SERVICE)/bin/python benchmarks/ranking.py folds $(R)/records --measured $(MEASURED) --seeds $(SEEDS) --out $@

$(R)/platforms.json: $(R)/records.made
	$(SERVICE)/bin/python benchmarks/ranking.py platforms $(R)/records --seeds $(SEEDS) --out $@

$(R)/few.json: $(R)/records.made
	$(SERVICE)/bin/python benchmarks/ranking.py few $(R)/records --seeds $(FEW_SEEDS) --out $@

lint: setup ## ruff, and which folder imports which
	$(SERVICE)/bin/ruff check .
	$(SERVICE)/bin/ruff format --check .
	$(SERVICE)/bin/lint-imports

types: setup ## mypy --strict
	$(SERVICE)/bin/mypy

clean: ## remove the environments and what the demo left
	rm -rf $(SERVICE) $(WORKER) $(FUZZER) .demo .bench .reproduce .soak.json
