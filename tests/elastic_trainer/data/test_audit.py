"""The audit proves what it claims: silent on true histories, loud on lost and repeated samples."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from elastic_trainer.data.audit import AuditError, AuditLog, RunStart, main, verify
from elastic_trainer.data.dataset import ElasticDataset
from elastic_trainer.ranks.process_group import ProcessGroup
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset

from tests.examples import examples

SAMPLES, EPOCHS = 23, 2


class Nothing(Dataset[int]):
    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> int:
        return index


@dataclass(frozen=True)
class Life:
    """One run: how many processes, how far they get, and how they end."""

    world: int
    batch: int
    steps: int
    commits: frozenset[int]
    """After which of its steps (counted from its start) it commits."""
    taken: int
    """Ranks below this take a batch of the step in which the run is killed."""
    applied: int
    """Ranks below this have said so of the last whole step when the run is killed."""
    older: bool
    """The next run restores the newest commit but one, as if the newest were damaged."""


lives = st.builds(
    Life,
    world=st.integers(1, 4),
    batch=st.integers(1, 3),
    steps=st.integers(0, 8),
    commits=st.frozensets(st.integers(1, 8)),
    taken=st.integers(0, 4),
    applied=st.integers(1, 4),
    older=st.booleans(),
)


@dataclass(frozen=True)
class Saved:
    run: int
    cursor: dict[str, int]


def live(folder: Path, life: Life, number: int, saved: list[Saved], *, finish: bool) -> None:
    ranks = [
        ElasticDataset(
            Nothing(SAMPLES),
            batch_size=life.batch,
            epochs=EPOCHS,
            audit=folder,
            collate=list,
            group=ProcessGroup(rank, life.world),
        )
        for rank in range(life.world)
    ]
    for data in ranks:
        if saved:
            data.load_state_dict(saved[-1].cursor)
        data.begin(run=number, parent=saved[-1].run if saved else 0)
    batches = [iter(data) for data in ranks]
    for step in range(1, 10**6 if finish else life.steps + 1):
        if all([next(batch, None) is None for batch in batches]):  # noqa: C419  # every rank takes
            return
        last = step == life.steps and not finish
        for rank, data in enumerate(ranks):
            # A rank may be killed after the all-reduce, before it writes that the step was applied;
            # rank 0, which may commit the step, isn't.
            if not last or rank < life.applied:
                data.applied()
        if step in life.commits:
            saved.append(Saved(number, ranks[0].state_dict()))
    if not finish:
        for batch in batches[: life.taken]:
            next(batch, None)


@given(history=st.lists(lives, max_size=6), final=lives)
@settings(deadline=None, max_examples=examples(150))
def test_no_sequence_of_resizes_kills_and_rollbacks_loses_or_repeats(
    history: list[Life], final: Life
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, saved = Path(name), list[Saved]()
        for number, life in enumerate(history, 1):
            live(folder, life, number, saved, finish=False)
            if life.older and len(saved) > 1:
                saved.pop()
        live(folder, final, len(history) + 1, saved, finish=True)
        report = verify(folder, SAMPLES, EPOCHS)
        assert report.ok, report
        assert report.seen == SAMPLES * EPOCHS


def record(folder: Path, run: int, steps: dict[int, list[int]], **start: int) -> AuditLog:
    log = AuditLog(
        folder,
        RunStart(
            run=run,
            round=run,
            rank=start.get("rank", 0),
            world=start.get("world", 1),
            start_step=start.get("start_step", 0),
            parent=start.get("parent", 0),
        ),
    )
    for step, indices in steps.items():
        log.took(step=step, epoch=0, indices=indices)
        log.applied(step)
    return log


def test_a_lost_sample_is_caught(tmp_path: Path) -> None:
    record(tmp_path, 1, {1: [0, 1], 2: [3]})
    report = verify(tmp_path, 4, 1)
    assert (report.lost, report.repeated, report.ok) == (1, 0, False)


def test_a_repeated_sample_is_caught(tmp_path: Path) -> None:
    record(tmp_path, 1, {1: [0, 1], 2: [2, 3, 1]})
    report = verify(tmp_path, 4, 1)
    assert (report.lost, report.repeated, report.ok) == (0, 1, False)


def test_a_sample_or_epoch_that_does_not_exist_is_caught(tmp_path: Path) -> None:
    log = record(tmp_path, 1, {1: [0, 1, 2]})
    log.took(step=2, epoch=1, indices=[0])
    log.applied(2)
    report = verify(tmp_path, 2, 1)
    assert (report.lost, report.repeated, report.unexpected, report.ok) == (0, 0, 2, False)


def test_a_cursor_that_forgot_the_rollback_is_caught(tmp_path: Path) -> None:
    # Steps 2 and 3 of run 1 are undone with the model, but the data went on: 2 and 3 are lost.
    record(tmp_path, 1, {1: [0, 1], 2: [2], 3: [3]})
    record(tmp_path, 2, {2: [4, 5]}, start_step=1, parent=1)
    report = verify(tmp_path, 6, 1)
    assert (report.lost, report.undone, report.ok) == (2, 2, False)


def test_a_cursor_rolled_back_without_the_model_is_caught(tmp_path: Path) -> None:
    record(tmp_path, 1, {1: [0, 1], 2: [2], 3: [3]})
    record(tmp_path, 2, {4: [2], 5: [3]}, start_step=3, parent=1)
    assert verify(tmp_path, 4, 1).repeated == 2


def test_a_rank_without_a_record_is_caught(tmp_path: Path) -> None:
    record(tmp_path, 1, {1: [0]}, rank=0, world=2)
    assert verify(tmp_path, 2, 1).lost == 1


def test_a_rank_killed_between_the_all_reduce_and_its_word_still_counts(tmp_path: Path) -> None:
    record(tmp_path, 1, {1: [0]}, rank=0, world=2)
    record(tmp_path, 1, {}, rank=1, world=2).took(step=1, epoch=0, indices=[1])
    assert verify(tmp_path, 2, 1).ok


def test_a_batch_that_was_taken_but_never_applied_does_not_count(tmp_path: Path) -> None:
    record(tmp_path, 1, {1: [0]}).took(step=2, epoch=0, indices=[1])
    report = verify(tmp_path, 2, 1)
    assert (report.lost, report.undone) == (1, 0)


def test_a_torn_last_line_is_ignored_wherever_it_was_cut(tmp_path: Path) -> None:
    record(tmp_path / "whole", 1, {1: [0, 1], 2: [2, 3]})
    (path,) = (tmp_path / "whole").iterdir()
    lines = path.read_bytes().splitlines(keepends=True)
    until_first_step = sum(map(len, lines[:3]))
    for size in range(until_first_step, until_first_step + len(lines[3])):
        folder = tmp_path / str(size)
        folder.mkdir()
        (folder / path.name).write_bytes(path.read_bytes()[:size])
        record(folder, 2, {2: [2, 3]}, start_step=1, parent=1)
        assert verify(folder, 4, 1).ok


def test_a_torn_first_line_is_a_run_that_did_nothing(tmp_path: Path) -> None:
    record(tmp_path, 1, {1: [0, 1]})
    (tmp_path / "run-000002-rank-00000.jsonl").write_bytes(b'{"run":2,"ro')
    assert verify(tmp_path, 2, 1).ok


def test_the_history_follows_commits_and_not_the_clock(tmp_path: Path) -> None:
    # Run 2 rolled back to step 1 and died without a commit; run 3 goes on from run 1's step 2.
    record(tmp_path, 1, {1: [0], 2: [1]})
    record(tmp_path, 2, {2: [1]}, start_step=1, parent=1)
    record(tmp_path, 3, {3: [2]}, start_step=2, parent=1)
    report = verify(tmp_path, 3, 1)
    assert (report.ok, report.undone) == (True, 1)


Damage = Callable[[Path], object]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "run-000001-rank-00000.jsonl").unlink(), "which has no record"),
        (
            lambda folder: (folder / "run-000002-rank-00000.jsonl").write_text("{nonsense}\n"),
            r"run-000002-rank-00000.jsonl:1: not JSON",
        ),
        (
            lambda folder: (folder / "run-000002-rank-00000.jsonl").write_text('{"step":1}\n'),
            "not the first line",
        ),
    ],
)
def test_a_record_that_can_not_be_right_is_refused(
    tmp_path: Path, damage: Damage, message: str
) -> None:
    record(tmp_path, 1, {1: [0]})
    record(tmp_path, 2, {2: [1]}, start_step=1, parent=1)
    damage(tmp_path)
    with pytest.raises(AuditError, match=message):
        verify(tmp_path, 2, 1)


def test_a_run_is_recorded_once(tmp_path: Path) -> None:
    record(tmp_path, 1, {})
    with pytest.raises(AuditError, match="cannot start the audit record"):
        record(tmp_path, 1, {})


def test_the_command_says_it_by_exit_code_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(tmp_path, 1, {1: [0, 1, 1]})
    arguments = [str(tmp_path), "--epochs", "1"]
    assert main([*arguments, "--samples", "2", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["repeated"] == 1
    assert main([*arguments, "--samples", "3"]) == 1
    assert "1 lost, 1 repeated" in capsys.readouterr().out
    assert main([str(tmp_path / "none"), "--epochs", "1", "--samples", "3"]) == 2
    assert "no audit folder" in capsys.readouterr().err


@pytest.mark.process
def test_the_module_runs_without_torch(tmp_path: Path) -> None:
    record(tmp_path, 1, {1: [0, 1]})
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from elastic_trainer.data.audit import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, str(tmp_path), "--samples", "2", "--epochs", "1"]
    subprocess.run(command, check=True, timeout=60, stdout=subprocess.DEVNULL)


@pytest.mark.process
def test_sigkill_loses_no_line(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from elastic_trainer.data.audit import AuditLog, RunStart\n"
        "log = AuditLog(Path(sys.argv[1]), RunStart(1, 0, 0, 1, 0, 0))\n"
        "for step in range(1, 10**9):\n"
        "    log.took(step=step, epoch=0, indices=[step - 1]); log.applied(step)\n"
        "    print(step, flush=True)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = 0
        for line in process.stdout:
            told = int(line)
            if told == 200:
                os.kill(process.pid, signal.SIGKILL)
                break
    report = verify(tmp_path, 200, 1)
    assert (report.lost, report.repeated) == (0, 0)
