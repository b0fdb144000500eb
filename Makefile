# setup makes a virtual environment in .venv with the pinned requirements, the C++ ops and this project as an editable
# install, and installs Bazel. train, benchmark, evidence and gpu-proof do the same first, without Bazel. Steps that are
# done already are skipped. test needs only the requirements and Bazel, which builds the ops itself.
SHELL := /bin/bash

VENV := .venv
PYTHON := $(VENV)/bin/python
INSTALL := $(PYTHON) -m pip install --quiet --quiet --disable-pip-version-check --no-compile
REQUIREMENTS := requirements.txt requirements-plots.txt requirements-dev.txt
# With an NVIDIA card, TensorFlow also gets its CUDA libraries. GPU=1 asks for them, and GPU=0 leaves them out.
# Without a working driver, nvidia-smi prints the reason instead of the cards, and exits with an error.
GPU ?= $(shell nvidia-smi --list-gpus >/dev/null 2>&1 && echo 1)
SIZES := TensorFlow alone is 600 MB
override GPU := $(filter-out 0,$(GPU))
ifneq ($(GPU),)
REQUIREMENTS += requirements-gpu.txt
SIZES += and its CUDA libraries are 3 GB
endif
# The name contains a checksum of this folder's path, because an editable install in a .venv that was copied or moved
# still points to the old folder and must be made again.
INSTALLED := $(VENV)/installed-$(shell pwd | cksum | cut -d " " -f 1)$(if $(GPU),-gpu)
LIBRARIES := ops/_ops.so environments/_pixels.so
# The name contains a checksum of the C++ sources. Their times do not tell: copied sources may be older than a library.
BUILT := $(VENV)/built-$(shell cat $(sort $(wildcard */cc/*.cc */cc/*.h)) ops/sources.py 2>/dev/null | cksum | cut -d " " -f 1)
LINTERS := $(INSTALLED)-lint
SPHINX := $(INSTALLED)-docs
TASKS := $(INSTALLED)-evidence
SITE := build/site
# A link to this folder under the package's name. pyright and editors find the package there; they cannot follow the
# editable install, because the root of the repository is the package.
SOURCE := $(VENV)/source/scalable_agents

# AGENT is the agent of `make train`: impala or r2d2. LOGDIR is its run directory. ARGS has further flags for
# `make train`, `make benchmark`, `make evidence` and `make gpu-proof`.
AGENT ?= impala
LOGDIR ?= $(if $(filter r2d2,$(AGENT)),runs/r2d2_pong,runs/pong)
ARGS ?=
# The C++ sources, whose format `make lint` checks.
CPP := $(wildcard */cc/*.cc */cc/*.h tests/*/cc/*.cc tests/*/cc/*.h)
# The C++ core, which `make lint` also compiles with clang. Files that include TensorFlow would take minutes.
CORE := $(filter-out %_op.cc %_ops.cc,$(wildcard */cc/*.cc))
# The Bazel targets that `make test` runs.
TESTS ?= //...

# On processors with bfloat16 instructions, the network's convolutions are almost twice as fast in bfloat16. For
# `make benchmark`, which measures the CPU. In training, --torso_precision=auto asks the device that computes.
PRECISION := $(if $(shell grep -sm1 avx512_bf16 /proc/cpuinfo),bfloat16,float32)
# Settings that learn Pong on a small machine, where the papers use 200 million and 10 billion frames. docs/results.md
# and docs/r2d2.md explain each difference from the papers.
PONG_impala := --level_name=pong --torso=shallow --torso_precision=auto --centre_pixels=median --noscale_pixels \
  --num_environments=64 --batch_size=8 --rmsprop_decay=0.9 --rmsprop_epsilon=1e-5 --clip_gradient_norm=20 \
  --vtrace_lambda=0.9 --entropy_cost=0.003 --total_environment_frames=10_000_000
PONG_r2d2 := --level_name=pong --torso=shallow --torso_precision=auto --centre_pixels=mean --num_environments=64 \
  --full_action_set=False --burn_in=4 --sequence_length=16 --sequence_period=8 --unroll_length=16 --batch_size=16 \
  --samples_per_period=1 --discount=0.99 --learning_rate=5e-4 --adam_epsilon=1e-5 --target_update_interval=200 \
  --replay_capacity=60_000 --replay_minimum_size=4_000 --nosave_replay --total_environment_frames=10_000_000
ifneq ($(filter train,$(MAKECMDGOALS)),)
ifeq ($(PONG_$(AGENT)),)
$(error train: AGENT=$(AGENT): want impala or r2d2)  # Here, because a recipe runs only after its prerequisites.
endif
endif

.PHONY: help setup ready packages train test lint docs links notebooks wheel wheel-test benchmark evidence gpu-proof doctor clean
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:  # For example, a .venv without pip, when the disk is full.

help:  ## Shows this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ready  ## Sets up .venv, the C++ libraries and Bazel. Skips what is set up already.

ready: packages $(INSTALLED) $(LIBRARIES) $(SOURCE)
	@echo 'setup: ready'

# The other targets need no Bazel. Prerequisites of these two get the variable, too.
setup test: PACKAGES := --bazel

packages:
	@tools/install_packages.sh $(PACKAGES) || echo 'setup: continuing without these packages'

$(PYTHON): | packages
	@for python in python3.11 python3.12 python3.13 python3; do \
	  if $$python -c 'import ensurepip, sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then \
	    echo "setup: making $(VENV) with $$($$python --version)"; \
	    exec $$python -m venv --clear $(VENV); \
	  fi; \
	done; \
	echo 'setup: no Python 3.11, 3.12 or 3.13 with venv found; on Debian 12: apt-get install python3-venv' >&2; exit 1

$(INSTALLED): $(REQUIREMENTS) | $(PYTHON)
	@$(PYTHON) -c 'import pip, sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null || { \
	  echo "setup: $(VENV) has $$($(PYTHON) --version 2>&1), perhaps without pip; want pip and Python 3.11, 3.12 or" \
	    "3.13: remove $(VENV) and run make setup again" >&2; exit 1; }
	@echo 'setup: installing the pinned requirements ($(SIZES))'
	@$(INSTALL) $(addprefix --requirement ,$(REQUIREMENTS))
	@# pip would compile these files on one core, and also packages that nothing imports.
	@$(PYTHON) -m compileall -qq -j 0 -x 'site-packages/(keras|pip|pygments)/|/tests/' $(VENV)/lib || true
	@touch $@

$(LIBRARIES) &: setup.py pyproject.toml $(BUILT) $(INSTALLED)
	@echo 'setup: building the C++ libraries and linking this folder into $(VENV) as scalable_agents'
	@$(PYTHON) -m pip install --quiet --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	@touch $(LIBRARIES)

$(BUILT): | $(PYTHON)
	@rm -f $(VENV)/built-* && touch $@

$(SOURCE): | $(PYTHON)
	@mkdir -p $(@D) && ln -sfn ../.. $@

train: ready  ## Trains IMPALA on Pong and evaluates it. Options: AGENT=r2d2 LOGDIR=runs/pong ARGS='--seed=2'.
	$(PYTHON) -m scalable_agents.agents.$(AGENT)_atari57 $(PONG_$(AGENT)) --logdir='$(LOGDIR)' $(ARGS)
	$(PYTHON) -m scalable_agents.agents.$(AGENT)_atari57 --logdir='$(LOGDIR)' --mode=test
	@echo 'all metrics:          $(VENV)/bin/tensorboard --logdir="$(LOGDIR)"'
	@echo "runs beside others:   $(PYTHON) -m scalable_agents compare_runs --runs='$$(dirname '$(LOGDIR)')/*'"

# Bazel keeps the results of tests. It does not see the packages in .venv, so they are named in a variable of the tests.
test: packages $(INSTALLED)  ## Runs every test. To run those of one folder: make test TESTS=//tests/learner/...
	@command -v bazel >/dev/null || { echo 'test: no Bazel; `make setup` says how to install it' >&2; exit 1; }
	@events=$$(mktemp); trap 'rm -f "$$events"' EXIT; \
	bazel test --keep_going --build_event_json_file="$$events" $(TESTS) --test_env=INSTALLED_PACKAGES="$$( \
	  { $(PYTHON) --version; $(PYTHON) -m pip freeze --exclude-editable; } | cksum)"; \
	$(PYTHON) tools/test_summary.py "$$events"

$(LINTERS): requirements-lint.txt $(INSTALLED)
	@echo 'lint: installing ruff, pyright, clang-format and clang-tidy'
	@$(INSTALL) --requirement $<
	@touch $@

lint: $(LINTERS) $(SOURCE)  ## Checks the code without running it. The last line is the result.
	@faults=0; \
	$(PYTHON) -m ruff check || faults=1; \
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(PYTHON) -m pyright || faults=1; \
	$(VENV)/bin/clang-format --dry-run --Werror $(CPP) || faults=1; \
	printf '%s\n' $(CORE) | xargs -I FILE -P 4 $(VENV)/bin/clang-tidy --quiet FILE -- || faults=1; \
	test $$faults = 0 && echo 'lint: no faults' || { echo 'lint: faults found'; exit 1; }

$(SPHINX): requirements-docs.txt $(INSTALLED)
	@echo 'docs: installing Sphinx'
	@$(INSTALL) --requirement $<
	@touch $@

docs: $(SPHINX) $(LIBRARIES)  ## Builds the site of the documentation in build/site. A warning is an error.
	@rm -rf $(SITE) build/doctrees
	@$(PYTHON) -m sphinx --quiet --fail-on-warning --keep-going --doctree-dir build/doctrees docs $(SITE)
	@echo 'docs: $(SITE)/index.html'

links: $(SPHINX) $(LIBRARIES)  ## Checks that the links of the documentation to other sites work. It needs the internet.
	@$(PYTHON) -m sphinx --quiet --builder linkcheck --define nb_execution_mode=off docs build/links
	@echo 'links: no dead link'

notebooks: $(SPHINX)  ## Converts the notebooks of docs/tutorials to Jupyter's format, in build/notebooks.
	@mkdir -p build/notebooks
	@for page in $$(grep --files-with-matches '^jupytext:' docs/tutorials/*.md); do \
	  $(VENV)/bin/jupytext --quiet --output build/notebooks/$$(basename $$page .md).ipynb $$page || exit 1; \
	done
	@ls build/notebooks

wheel: $(LIBRARIES)  ## Builds a wheel in dist/. It installs without a compiler, with Python 3.11 to 3.13.
	@rm -rf dist
	SCALABLE_AGENTS_BUILT=1 $(PYTHON) -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps \
	  --wheel-dir dist .
	@ls dist

wheel-test: wheel  ## Installs that wheel in an environment of its own, without a compiler, and learns catch.
	$(PYTHON) tools/check_wheel.py dist/*.whl

benchmark: ready  ## Measures the speed of each part and of the whole training.
	$(PYTHON) -m scalable_agents.tools.benchmark --torso_precision=$(PRECISION) $(ARGS)

$(TASKS): requirements-evidence.txt $(INSTALLED)
	@echo 'evidence: installing POPGym and bsuite'
	@$(INSTALL) --requirement $<
	@touch $@

evidence: ready $(TASKS)  ## Checks claims of the papers on small tasks, and writes results/evidence/evidence.md.
	$(PYTHON) -m scalable_agents.tools.evidence $(ARGS)

gpu-proof: ready  ## Measures how fast and exact an NVIDIA card is, in 8 minutes. Without a card: ARGS=--device=cpu.
	$(PYTHON) -m scalable_agents.tools.gpu_proof $(ARGS)

doctor:  ## Checks this machine, and prints a command that fixes each problem.
	@if test -x $(PYTHON); then python=$(PYTHON); else python=python3; fi; \
	if $$python -c 'import scalable_agents' 2>/dev/null; then $$python -m scalable_agents.tools.doctor; \
	else $$python tools/doctor.py; fi  # `pip install .` puts the package and its libraries elsewhere.

clean:  ## Removes build outputs; keeps .venv and runs/.
	@if command -v bazel >/dev/null; then bazel clean || true; fi
	rm -rf build dist $(LIBRARIES)
