"""Rows that the job's environment adds to the table of node_fault.py; they go before its own.

The operator tells them (`--failure-rule`); its half is
`volcano_elastic/pytorchjob/failure_rule.py`.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass

VARIABLE = "VOLCANO_ELASTIC_FAILURE_RULES"
"""KIND:VALUE=CLASS:WORDS, one a line; KIND is text (a regular expression), exit-code or signal, and
CLASS hardware, software or interruption. Other kinds are for the operator alone."""
CLASSES = ("hardware", "software", "interruption")


@dataclass(frozen=True)
class FailureRule:
    kind: str
    value: str
    failure_class: str
    what: str
    """Name of the part that has failed, in words."""

    def applies(self, text: str, code: int) -> bool:
        """Return whether a worker's end is one of these; `code` is negative for a signal."""
        if self.kind == "text":
            lines = text.splitlines()
            return any(re.search(self.value, line, re.IGNORECASE) for line in lines)
        if self.kind == "exit-code":
            return code == int(self.value)
        return self.kind == "signal" and code == -signal.Signals[self.value]


def read(environment: Mapping[str, str]) -> tuple[FailureRule, ...]:
    """Return the rules in an environment. Raises ValueError for what is none."""
    lines = environment.get(VARIABLE, "").splitlines()
    return tuple(_read(line.strip()) for line in lines if line.strip())


def _read(line: str) -> FailureRule:
    kind, _, rest = line.partition(":")
    value, _, told = rest.rpartition("=")
    name, _, what = told.partition(":")
    try:
        if not value or name not in CLASSES:
            raise ValueError(f"CLASS is one of {', '.join(CLASSES)}")
        if kind == "text":
            re.compile(value)
        elif kind == "exit-code":
            int(value)
        elif kind == "signal" and value not in signal.Signals.__members__:
            raise ValueError("no signal has that name")
    except (ValueError, re.error) as error:
        raise ValueError(
            f"{VARIABLE}: expected KIND:VALUE=CLASS:WORDS on each line, found {line!r}: {error}; "
            "fix or unset it"
        ) from None
    return FailureRule(kind, value, name, what or f"{kind} {value}")
