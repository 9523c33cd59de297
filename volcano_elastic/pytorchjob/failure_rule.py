"""Rows that whoever installs the operator adds to the table of failures (`--failure-rule`).

Pods of elastic jobs are told of them, so that the trainer judges its workers' errors by the same;
its half is `elastic_trainer/failures/failure_rule.py`.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from enum import StrEnum

from volcano_elastic.pytorchjob.failure_class import FailureClass

VARIABLE = "VOLCANO_ELASTIC_FAILURE_RULES"


class Kind(StrEnum):
    TEXT = "text"
    """A regular expression that a line of an error's text has."""
    EXIT_CODE = "exit-code"
    SIGNAL = "signal"
    """That ended a process, such as SIGBUS."""
    REASON = "reason"
    """Reason in a pod's or a container's status."""


@dataclass(frozen=True, slots=True)
class FailureRule:
    kind: Kind
    value: str
    failure_class: FailureClass
    what: str
    """Name of the part that has failed, in words."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.value}={self.failure_class}:{self.what}"

    def applies(self, *, text: str, code: int, reason: str) -> bool:
        """Return whether the end of a container or pod is one of these.

        Args:
            text: the container's last words.
            code: its exit code, 128 + N after signal N.
            reason: of its status, or of its pod's.
        """
        match self.kind:
            case Kind.TEXT:
                lines = text.splitlines()
                return any(re.search(self.value, line, re.IGNORECASE) for line in lines)
            case Kind.EXIT_CODE:
                return code == int(self.value)
            case Kind.SIGNAL:
                return code == 128 + signal.Signals[self.value]
            case Kind.REASON:
                return reason == self.value


def parse(text: str) -> FailureRule:
    """Return the rule in `KIND:VALUE=CLASS` or `KIND:VALUE=CLASS:WORDS`.

    Raises:
        ValueError: it is none; the message says what was expected.
    """
    kind, colon, rest = text.partition(":")
    value, equals, told = rest.rpartition("=")
    name, _, what = told.partition(":")
    kinds, classes = tuple(Kind), tuple(FailureClass)
    if not (colon and equals and value) or kind not in kinds or name not in classes:
        raise ValueError(
            "expected KIND:VALUE=CLASS or KIND:VALUE=CLASS:WORDS, KIND one of "
            f"{', '.join(kinds)}, CLASS one of {', '.join(classes)}; found {text!r}"
        )
    if "\n" in text:
        raise ValueError(f"expected one line, found {text!r}")
    _check(Kind(kind), value)
    return FailureRule(Kind(kind), value, FailureClass(name), what or f"{kind} {value}")


def _check(kind: Kind, value: str) -> None:
    if kind is Kind.TEXT:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"expected a regular expression, found {value!r}: {error}") from None
    if kind is Kind.EXIT_CODE and not (value.isdecimal() and 0 < int(value) < 256):
        raise ValueError(f"expected an exit code from 1 to 255, found {value!r}")
    if kind is Kind.SIGNAL and value not in signal.Signals.__members__:
        raise ValueError(f"expected the name of a signal, such as SIGBUS, found {value!r}")
