"""Rows that are added to the table of failures, as operator and trainer read them."""

from __future__ import annotations

import contextlib
import signal

import pytest
from elastic_trainer.failures import failure_rule as trainers
from elastic_trainer.failures.failure import Exit, describe
from hypothesis import given
from hypothesis import strategies as st

from tests.pytorchjob.test_failure_class import failed
from tests.pytorchjob.test_job_coordinator import NOW, OURS, environment
from tests.pytorchjob.world import World, job_object
from volcano_elastic.pytorchjob.failure_class import FailureClass, of_pod
from volcano_elastic.pytorchjob.failure_rule import VARIABLE, Kind, parse

RULES = [
    "text:mlx5.*fatal=hardware:InfiniBand",
    "text:a=b CUDA error=software:ours",
    "exit-code:77=hardware:self-test",
    "signal:SIGXCPU=interruption:its time was over",
    "reason:SpotReclaimed=interruption",
]


@pytest.mark.parametrize("text", RULES)
def test_a_rule_is_read_as_it_is_written(text: str) -> None:
    assert parse(str(parse(text))) == parse(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "text", "text:", "text:x", "text:x=", "text:x=broken", "code:1=hardware"),
        *("text:(=hardware", "exit-code:0=hardware", "exit-code:x=hardware"),
        *("signal:9=hardware", "signal:SIGNONE=hardware", "text:a\nb=hardware"),
    ],
)
def test_what_is_no_rule_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse(text)


def test_pods_ends_are_judged_by_the_rules_first() -> None:
    rules = tuple(map(parse, RULES))

    def judge(reason: str = "", **ended: object) -> tuple[FailureClass, str]:
        state = {"state": {"terminated": {"exitCode": 1} | ended}, "name": "pytorch"}
        found = of_pod(failed(reason=reason, containerStatuses=[state]), "pytorch", rules)
        assert found is not None
        return found.kind, found.what

    hardware, interruption = FailureClass.HARDWARE, FailureClass.INTERRUPTION
    assert judge(message="x\nmlx5_0: fatal error") == (hardware, "InfiniBand")
    assert judge(exitCode=77) == (hardware, "self-test")
    assert judge(exitCode=128 + signal.SIGXCPU) == (interruption, "its time was over")
    assert judge("SpotReclaimed") == (interruption, "reason SpotReclaimed")
    assert judge(message="a=b CUDA error: unknown error") == (FailureClass.SOFTWARE, "ours")
    assert judge(exitCode=127)[0] is FailureClass.SOFTWARE, "what they don't say, the table does"


def test_pods_of_elastic_jobs_are_told_of_them_so_that_the_trainer_judges_alike() -> None:
    world = World(job_object(elastic=OURS), NOW)
    world.failure_rules = tuple(map(parse, RULES))
    world.settle()
    told = environment(world.pods["a-worker-0"])
    rules = trainers.read(told)
    assert [(r.kind, r.value, r.failure_class, r.what) for r in rules] == [
        (r.kind, r.value, r.failure_class, r.what) for r in world.failure_rules
    ]

    def fault(message: str, code: int = 1) -> str:
        exit_ = Exit(round=1, rank=0, local_rank=0, pid=1, code=code, time=0.0, error_file="")
        return describe(exit_, oom_killed=False, note=message, rules=rules).node_fault

    assert fault("mlx5_0: fatal error") == "InfiniBand"
    assert fault("", 77) == "self-test"
    assert fault("a=b CUDA error: unknown error") == ""
    assert fault("CUDA error: unknown error") == "CUDA"


@given(st.text(max_size=20))
def test_nonsense_is_a_value_error_to_the_trainer(text: str) -> None:
    with contextlib.suppress(ValueError):
        trainers.read({VARIABLE: text})


def test_each_kind_is_in_a_rule_here() -> None:
    assert {parse(text).kind for text in RULES} == set(Kind)
