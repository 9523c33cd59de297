"""The stacks of a worker, as its agent tells them."""

from __future__ import annotations

from elastic_trainer.link.stack import MOST_FRAMES, STACK_CHARACTERS, shaped
from hypothesis import given
from hypothesis import strategies as st

FRAME = '  File "{}", line 1 in {}'


def dump(threads: list[int], frames: int) -> str:
    blocks = []
    for thread in threads:
        lines = [f"Thread 0x{thread} (most recent call first):"]
        lines += [FRAME.format("train.py", f"frame_{thread}_{i}") for i in range(frames)]
        lines.append(FRAME.format("/x/elastic_trainer/launch/script.py", "run_as_main"))
        lines += [FRAME.format("torch/distributed/run.py", "main")] * 40
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


@given(st.lists(st.integers(0, 99), min_size=1, max_size=60), st.integers(1, 90))
def test_the_main_threads_newest_frames_are_told_however_much_there_is(
    threads: list[int], frames: int
) -> None:
    told = shaped(dump(threads, frames))
    assert len(told) <= STACK_CHARACTERS
    assert told.startswith(f"Thread 0x{threads[-1]} ") and f"frame_{threads[-1]}_0" in told
    assert "run_as_main" not in told and "distributed/run.py" not in told
    newest = [line for line in told.splitlines() if f" frame_{threads[-1]}_" in line]
    assert len(newest) >= min(frames, MOST_FRAMES)


def test_what_is_no_dump_is_told_as_it_is() -> None:
    assert shaped("") == "" and shaped("Fatal\n") == "Fatal"
