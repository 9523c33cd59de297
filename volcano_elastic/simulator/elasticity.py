"""Rules for how far a traced job may shrink and grow: `min=ceil(gpus/4),max=min(4*gpus,64)`."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from volcano_elastic.simulator.curve import Curve, efficient

DEFAULT = "min=ceil(gpus/4),max=min(4*gpus,64)"

Number = int | float
_OPERATORS: Mapping[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: Mapping[str, Callable[..., Number]] = {
    "min": min,
    "max": max,
    "ceil": math.ceil,
    "floor": math.floor,
    "round": round,
}
_NAMES = ("gpus", "cluster")
_HELP = (
    "expected min=EXPRESSION,max=EXPRESSION[,unit=EXPRESSION] of numbers, gpus (what the job asked "
    "for), cluster (all there are), efficient(E) (the largest size whose efficiency is E), + - * / "
    "// %, min(), max(), ceil(), floor(), round()"
)


class ElasticityError(ValueError):
    """An expression that is not one of ours, or that makes no sense for some job."""


@dataclass(frozen=True, slots=True)
class Range:
    min: int
    max: int
    unit: int = 1


class Elasticity:
    """A parsed expression. Only arithmetic is ever evaluated.

    Raises:
        ElasticityError: says what may be written.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            call = ast.parse(f"f({text})", mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise ElasticityError(f"{_HELP}; found {text!r}") from None
        if not isinstance(call, ast.Call) or call.args or not isinstance(call.func, ast.Name):
            raise ElasticityError(f"{_HELP}; found {text!r}")
        self._parts = {str(keyword.arg): keyword.value for keyword in call.keywords}
        if not {"min", "max"} <= self._parts.keys() <= {"min", "max", "unit"}:
            raise ElasticityError(f"{_HELP}; found {text!r}")
        for part in self._parts.values():
            self._check(part)

    def __call__(self, gpus: int, cluster: int, curve: Curve) -> Range:
        """The range of a job that asked for `gpus`; at most the cluster, whole units, at least 1.

        Raises:
            ElasticityError: min above max or the cluster, or no number at all.
        """
        values: dict[str, int] = {}
        for name, part in self._parts.items():
            try:
                value = self._value(part, gpus, cluster, curve)
                if not math.isfinite(value) or value < 1 or value != int(value):
                    raise ElasticityError(
                        f"{name} must be a whole number of at least 1, found {value:g} for a job "
                        f"of {gpus}; write ceil(...) or max(1, ...)"
                    )
            except (ArithmeticError, TypeError, ValueError) as error:
                if isinstance(error, ElasticityError):
                    raise
                raise ElasticityError(f"{name} for a job of {gpus}: {error}") from None
            values[name] = int(value)
        unit = values.get("unit", 1)
        least = -(-values["min"] // unit) * unit
        most = min(values["max"], cluster) // unit * unit
        if least > most:
            raise ElasticityError(
                f"min {least} is more than max {most} for a job of {gpus} on {cluster}"
            )
        return Range(least, most, unit)

    def _check(self, node: ast.expr) -> None:
        match node:
            case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
                pass
            case ast.Name(id=name) if name in _NAMES:
                pass
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                self._check(operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                self._check(left)
                self._check(right)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if args and (
                name in _FUNCTIONS or (name == "efficient" and len(args) == 1)
            ):
                for arg in args:
                    self._check(arg)
            case _:
                raise ElasticityError(f"{_HELP}; found {ast.unparse(node)!r} in {self.text!r}")

    def _value(self, node: ast.expr, gpus: int, cluster: int, curve: Curve) -> Number:
        def value(part: ast.expr) -> Number:
            return self._value(part, gpus, cluster, curve)

        match node:
            case ast.Constant(value=int() | float() as number):
                return number
            case ast.Name(id=name):
                return {"gpus": gpus, "cluster": cluster}[name]
            case ast.UnaryOp(operand=operand):
                return -value(operand)
            case ast.BinOp(left=left, op=op, right=right):
                return _OPERATORS[type(op)](value(left), value(right))
            case ast.Call(func=ast.Name(id="efficient"), args=[least]):
                return efficient(curve[: cluster + 1], value(least))
            case ast.Call(func=ast.Name(id=name), args=args):
                return _FUNCTIONS[name](*map(value, args))
        raise AssertionError(f"unchecked {ast.dump(node)}")
