"""Has each Python process install the operators of simulated GPUs once it has imported torch."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any


class _AfterTorch(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_install(module: ModuleType) -> None:
            load(module)
            sys.path.append(str(Path(__file__).resolve().parents[1]))
            import operators

            sys.path.pop()
            operators.install()

        spec.loader.exec_module = load_and_install  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _AfterTorch())
