# Two commands matter: 'make book' and 'make test'. Both set up .venv from requirements.lock first, once.

PYTHON ?= python3
PROFILE ?= laptop
VENV = .venv
READY = $(VENV)/.installed

help:
	@echo "make book                 train, execute and render the book into build/html"
	@echo "make book PROFILE=smoke   the same in a few minutes; its numbers mean nothing"
	@echo "make test                 all tests"
	@echo "make lab                  the notebooks in JupyterLab"

book: $(READY)
	$(VENV)/bin/shiftbound build --profile $(PROFILE)

test: $(READY)
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest --numprocesses 2 --dist loadfile $(TESTS)

lab: $(READY)
	$(VENV)/bin/jupyter lab notebooks

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "shiftbound needs Python 3.11 or newer; say which with make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --requirement requirements.lock
	$(VENV)/bin/python -m pip install --quiet --no-deps --editable .
	@touch $@

.PHONY: help book test lab
