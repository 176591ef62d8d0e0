SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON := .venv/bin/python
SETUP := .venv/.setup
AIRFLOW := .venv/.airflow
# The demos need less; an environment that has all stays as it is.
DEMO := $(or $(wildcard $(SETUP)),.venv/.demo)
N ?= 50
ARGS ?=

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 20

.PHONY: setup
setup: $(SETUP) ## Make the locked environment in .venv
	@:

$(SETUP): pyproject.toml uv.lock scripts/setup.sh
	@scripts/setup.sh
	@touch $@

# Only what runs Airflow, or checks the code that does, waits for its 150 packages.
$(AIRFLOW): pyproject.toml uv.lock scripts/setup.sh
	@scripts/setup.sh airflow
	@touch $(SETUP) $@

.venv/.demo: pyproject.toml uv.lock scripts/setup.sh
	@scripts/setup.sh demo
	@touch $@

# Of the libraries only what a demo uses is compiled, once, by the first process that uses it.
demo demo-%: export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo
demo: $(if $(findstring --avro,$(ARGS)),$(SETUP),$(DEMO)) ## Lose messages for real, rebuild them, put them back once
	@$(if $(findstring --avro,$(ARGS)),scripts/need.sh mariadb,:)
	@$(PYTHON) -m examples.demo --report build/demo-report.html $(ARGS)

.PHONY: demo-secure
demo-secure: $(DEMO) ## The same on three brokers with OAuth, certificates and narrow rights
	@$(PYTHON) -m examples.demo --secure --report build/demo-report.html $(ARGS)

.PHONY: demo-expand
demo-expand: $(DEMO) ## Drain 300,000 messages ten times as fast, and restore the layout
	@$(PYTHON) -m examples.demo expand --report build/demo-expand-report.html $(ARGS)

.PHONY: demo-kubernetes
demo-kubernetes: $(SETUP) ## The same with pods: 3, 30, 3, through a real API server; the runner is killed
	@scripts/need.sh etcd go
	@$(PYTHON) -m tests.kit.kubernetes
	@$(PYTHON) -m examples.demo kubernetes --report build/demo-kubernetes-report.html $(ARGS)

.PHONY: demo-offload
demo-offload: $(DEMO) ## Fill a broker's disk, move what is unread into an archive, put it back
	@$(PYTHON) -m examples.demo offload --report build/demo-offload-report.html $(ARGS)

.PHONY: demo-delivery
demo-delivery: $(DEMO) ## Kill an outbox, look-back and their consumers between their steps; each order is handled once
	@$(PYTHON) -m examples.demo delivery $(ARGS)

.PHONY: airflow
airflow: $(AIRFLOW) ## Start Airflow with the runbooks, Kafka and a shop in trouble; Ctrl-C stops all
	@$(PYTHON) -m backlogctl.dags.local.demo $(ARGS)

.PHONY: test
test: $(AIRFLOW) ## Run the tests, on a real Kafka, PostgreSQL, MariaDB, Redis, Spark, Airflow, Prometheus and Chromium, with real clients
	@scripts/need.sh postgres mariadb redis kcat prometheus chromium jdk node go etcd
	@$(PYTHON) -m tests.clients.building
	@$(PYTHON) -m tests.kit.kubernetes
	@$(PYTHON) scripts/run_tests.py $(ARGS)

.PHONY: faults
faults: $(AIRFLOW) ## Run the tests that bear a fault's number, and print each with its result: fifteen minutes
	@scripts/need.sh postgres mariadb redis kcat prometheus chromium jdk node go etcd
	@$(PYTHON) -m tests.kit.kubernetes
	@$(PYTHON) -m scripts.faults $(ARGS)

.PHONY: test-all
test-all: ## Run them all, with every whole story: some three times as long
	@$(MAKE) --no-print-directory test ARGS="--all $(ARGS)"
	@$(MAKE) --no-print-directory test-airflow-versions

.PHONY: test-quick
test-quick: $(AIRFLOW) ## Run what takes seconds, on a real Kafka, PostgreSQL, MariaDB and Redis: under five minutes
	@scripts/need.sh postgres mariadb redis
	@$(PYTHON) scripts/run_tests.py --quick $(ARGS)

.PHONY: test-clients
test-clients: $(SETUP) ## Run the clients that people use, in Java, Go, Node and Python: under six minutes
	@scripts/need.sh jdk node go
	@$(PYTHON) -m tests.clients.building
	@$(PYTHON) scripts/run_tests.py tests/clients $(ARGS)

.PHONY: test-airflow-versions
test-airflow-versions: $(AIRFLOW) ## Run the runbooks on the oldest and the newest Airflow and Python: five minutes
	@scripts/need.sh chromium
	@scripts/test_airflow_versions.sh

# What speaks to brokers: the contracts of relay, injection, watch and requests.
VERSIONED = tests/kernel/kafka tests/fanout/relay tests/spark_backfill/injection/test_exactly_once.py \
	tests/monitoring/test_observing.py tests/monitoring/test_groups_live.py tests/monitoring/test_gaps.py \
	tests/monitoring/test_unseen.py tests/monitoring/test_open_transactions.py
.PHONY: test-kafka-versions
test-kafka-versions: $(SETUP) ## Run what speaks to brokers on Kafka 3.7, 3.9 and 4.4: half an hour
	@scripts/need.sh postgres
	@for list in tests/kit/kafka-[0-9]*.jars; do echo "== $$list"; \
		BACKLOG_KAFKA_JARS=$$PWD/$$list $(PYTHON) scripts/run_tests.py $(VERSIONED) $(ARGS) || exit 1; done

.PHONY: lint
lint: $(SETUP) ## Check style and format
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

.PHONY: format
format: $(SETUP) ## Mend style and format
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

.PHONY: types
types: $(AIRFLOW) ## Check types
	.venv/bin/mypy

.PHONY: imports
imports: $(AIRFLOW) ## Check that imports go one way
	.venv/bin/lint-imports

.PHONY: crash
crash: $(SETUP) ## Kill recoveries and deliveries in N random ways: make crash N=50 SEED=7
	@scripts/need.sh postgres mariadb
	@seed=$${SEED:-$$RANDOM}; echo "SEED=$$seed"; \
	$(PYTHON) -m tests.crash.schedule --n $(N) --seed "$$seed" $(ARGS)

.PHONY: fuzz
fuzz: $(SETUP) ## Mutate 100,000 batches, and relay 200 random logs by both engines
	@FUZZ=100000 EXAMPLES=200 $(PYTHON) -m pytest -p no:cacheprovider tests/wire tests/fanout/relay/test_random_logs.py $(ARGS)

.PHONY: accuracy
accuracy: $(SETUP) ## Measure what a rebuild misses and doubles: make accuracy SEED=7
	@scripts/need.sh postgres
	@$(PYTHON) -m tests.accuracy.measure $${SEED:+--seed "$$SEED"} $(ARGS)

.PHONY: bench-rebuild
bench-rebuild: $(SETUP) ## Measure a rebuild from PostgreSQL; its plan from MariaDB, and of Avro
	@scripts/need.sh postgres mariadb
	$(PYTHON) -m benchmarks.rebuild $(ARGS)
	$(PYTHON) -m benchmarks.rebuild_sources $(ARGS)

.PHONY: bench-first-minute
bench-first-minute: $(SETUP) ## Measure where the time of a small plan goes
	$(PYTHON) -m benchmarks.first_minute $(ARGS)

.PHONY: bench-relay
bench-relay: $(SETUP) ## Measure the relay beside kcat, MirrorMaker 2, Spark and Kafka's producer test: 25 minutes
	@scripts/need.sh kcat
	$(PYTHON) -m benchmarks.relay $(ARGS)

.PHONY: bench-offload
bench-offload: $(SETUP) ## Measure the archive beside Spark's own Parquet and kcat
	@scripts/need.sh kcat
	$(PYTHON) -m benchmarks.offload $(ARGS)

.PHONY: bench-audit
bench-audit: $(SETUP) ## Measure audits by Spark and by batch headers, and what numbering costs a producer
	$(PYTHON) -m benchmarks.audit_sequence $(ARGS)
	$(PYTHON) -m benchmarks.forensics $(ARGS)
	$(PYTHON) -m benchmarks.sequenced $(ARGS)

.PHONY: bench-delivery
bench-delivery: $(SETUP) ## Measure outbox, look-back and idempotent consumer
	@scripts/need.sh postgres mariadb redis
	$(PYTHON) -m benchmarks.delivery $(ARGS)

.PHONY: bench-watch
bench-watch: $(SETUP) ## Measure sampling and scraping of many groups
	$(PYTHON) -m benchmarks.watch $(ARGS)

.PHONY: bench-streams
bench-streams: $(SETUP) ## Measure 500 streams of one cluster: a pass, status, doctor
	$(PYTHON) -m benchmarks.streams $(ARGS)

.PHONY: healthy-clients
healthy-clients: $(SETUP) ## Take 20,000 samples of healthy groups of every client
	@scripts/need.sh jdk node go
	@$(PYTHON) -m tests.clients.building
	$(PYTHON) -m benchmarks.healthy_clients $(ARGS)

.PHONY: live-loss
live-loss: $(SETUP) ## Measure what is told of groups that lose all the time, in half an hour
	@scripts/need.sh jdk node go
	@$(PYTHON) -m tests.clients.building
	$(PYTHON) -m benchmarks.live_loss $(ARGS)

.PHONY: bench-watch-memory
bench-watch-memory: $(SETUP) ## Measure whether the watcher's memory levels off, in a quarter of an hour
	$(PYTHON) -m benchmarks.watch_memory $(ARGS)

.PHONY: bench-airflow
bench-airflow: $(AIRFLOW) ## Measure from a trigger in Airflow to a plan, and to the end
	$(PYTHON) -m benchmarks.airflow $(ARGS)

.PHONY: picture
picture: $(SETUP) ## Run the demo and draw it as docs/demo.svg
	$(PYTHON) scripts/pictures.py demo

.PHONY: clean
clean: ## Remove what was made here (the cache of Java libraries stays)
	rm -rf .venv .uv .tools build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
