# The few things one does with this project. Everything installs itself into .venv first.
PYTHON ?= python3
BIN := .venv/bin
OUT ?= demo-out

.PHONY: demo test lint proto requirements clean

demo: .venv/ready
	$(BIN)/volcano-elastic demo --out $(OUT)

test: .venv/ready
	$(BIN)/python -m pytest

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

proto: .venv/ready
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. trainer/proto/coordinator.proto

# Pinned with hashes, and naming no index: any mirror that serves the same files will do.
requirements:
	$(BIN)/uv pip compile -q --extra dev --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --no-header --no-annotate --universal -p 3.11 pyproject.toml -o requirements.txt

.venv/ready: requirements.txt pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --disable-pip-version-check uv
	$(BIN)/uv pip install -q --python $(BIN)/python --require-hashes -r requirements.txt
	$(BIN)/uv pip install -q --python $(BIN)/python --no-deps --no-build-isolation -e .
	touch $@

clean:
	rm -rf .venv demo-out
