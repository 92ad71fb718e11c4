# Everything is installed into .venv and nowhere else.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
JOBS ?= 2
UNIT_JOBS ?= 3
FUZZ ?= 20000
SOURCES := tidegate pyspark_tidegate pytest_tidegate tests examples benchmarks

.PHONY: help setup demo test test-matrix lint format typecheck unit bench bench-peers notebook soak soak-kills soak-ha soak-connectors soak-micro-batch soak-spark fuzz kafka postgres lock docs api-report clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 18

setup: $(READY)  ## create .venv and install the locked dependencies

$(READY): pyproject.toml requirements.lock scripts/check_java.sh
	@scripts/check_java.sh
	@if [ -x $(PY) ]; then python=$(PY); else python=$(PYTHON); fi; \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Tidegate needs Python 3.11 or newer, but '$$python' is $$($$python -V 2>&1 || echo missing)."; \
		echo "Install it (Debian/Ubuntu: sudo apt-get install python3.11 python3.11-venv; Fedora: sudo dnf install python3.11;"; \
		echo "macOS: brew install python@3.11), remove $(VENV) if there is one, and run: make setup PYTHON=python3.11"; \
		exit 1; }
	@[ -x $(PY) ] || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check "setuptools==80.9.0" -r requirements.lock  # builds the wheel; pip-compile leaves it out
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps -e . --config-settings editable_mode=compat
	@touch $(READY)

demo: setup  ## run the demo on local Spark
	$(PY) examples/demo.py

test: lint  ## lint, types and all tests
	$(PY) -m pytest -q -rsfE -m "not spark and not soak" -n $(UNIT_JOBS) --dist worksteal
	$(PY) -m pytest -q -rsfE -m "spark and not soak" -n $(JOBS) --dist loadfile

test-matrix: setup  ## the tests on Spark with PySpark 3.5 to 4.3 and Python 3.11 to 3.13, in environments of their own
	JOBS=$(JOBS) $(PY) -m tests.spark.matrix

lint: setup  ## ruff and mypy
	$(PY) -m ruff check $(SOURCES)
	$(PY) -m ruff format --check $(SOURCES)
	$(PY) -m mypy

unit: setup  ## only the fast tests, without Spark
	$(PY) -m pytest -q -m "not spark and not slow"

format: setup  ## format the sources in place
	$(PY) -m ruff check --fix $(SOURCES)
	$(PY) -m ruff format $(SOURCES)

bench: setup  ## run the benchmarks
	$(PY) -m benchmarks

bench-peers: setup  ## the same jobs on PyFlink, bytewax, Spark and Tidegate; writes the table and the plot of README and docs
	$(PY) -m benchmarks.peers --write

notebook: setup  ## try the page about Jupyter in a real kernel
	$(PY) -m tests.spark.notebook

soak: setup  ## simulate failures until stopped
	$(PY) -m tests.simulation.soak

soak-kills: setup  ## put jobs of all kinds under real kills, freezes, cuts and killed drivers, until stopped
	$(PY) -m tests.spark.soak_kills

soak-ha: setup  ## kill supervised drivers on every kind of store, and try `tidegate chaos` on whole programs
	$(PY) -m pytest -q tests/spark/test_supervised_drivers.py tests/spark/test_high_availability.py tests/spark/test_chaos.py

soak-connectors: setup  ## kill workers, broker and database under running jobs, many times
	$(PY) -m tests.connectors.soak
	TIDEGATE_SOAK=1 $(PY) -m pytest -q -rsfE -m soak tests/connectors tests/unit/connectors

soak-spark: setup  ## the long tests on Spark that no other soak has: networks cut both ways, a session that is gone, looks at jobs, pages, MICRO_BATCH
	TIDEGATE_SOAK=1 $(PY) -m pytest -q -rsfE -m soak tests/spark/test_partitions.py tests/spark/test_spark_is_gone.py \
		tests/spark/test_looks_at_jobs.py tests/spark/test_page.py tests/spark/dataframes tests/spark/micro_batch tests/spark/test_logging.py

soak-micro-batch: setup  ## kill workers, executors, the JVM and drivers of jobs in MICRO_BATCH mode, 50 times
	$(PY) -m tests.spark.micro_batch.soak
	TIDEGATE_SOAK=1 $(PY) -m pytest -q -rsfE -m soak tests/unit/micro_batch

fuzz: setup  ## feed every decoder and reader with damaged bytes, for a long time (FUZZ=examples per test)
	TIDEGATE_FUZZ=$(FUZZ) $(PY) -m pytest -q tests/fuzz tests/unit/windows/test_against_the_model.py \
		tests/unit/micro_batch/test_windows.py tests/unit/micro_batch/test_timers.py -n $(JOBS) --timeout 0

kafka: setup  ## run a Kafka broker until Ctrl-C, to try things
	$(PY) -m tests.connectors.broker

postgres: setup  ## run a PostgreSQL until Ctrl-C, to try things
	$(PY) -m tests.connectors.database

lock: $(READY)  ## pin the dependencies of pyproject.toml anew
	CUSTOM_COMPILE_COMMAND="make lock" $(PY) -m piptools compile --quiet --upgrade --extra dev --strip-extras \
		--no-emit-index-url --no-emit-find-links --no-emit-trusted-host --output-file requirements.lock pyproject.toml

docs: setup  ## write the generated pages of docs/
	$(PY) -m tidegate.common.options_page docs/configuration.md
	$(PY) scripts/api_report.py --update docs/pyflink-differences.md

api-report: setup  ## how much of PyFlink's API is there
	@$(PY) scripts/api_report.py

clean:  ## remove what builds and tests leave behind (not .venv)
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis spark-warehouse metastore_db derby.log
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +
