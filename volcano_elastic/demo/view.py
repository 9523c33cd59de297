"""Shows the demo while it runs: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import asyncio
from collections import deque

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table

from volcano_elastic.demo.recorder import Recorder

_PHASE_COLOURS = ("blue", "yellow", "green", "magenta")


class View:
    def __init__(self, console: Console) -> None:
        self.console = console
        self._lines: deque[str] = deque(maxlen=8)
        self._recorder: Recorder | None = None

    def say(self, text: str) -> None:
        since = f"{self._recorder.now():6.1f} s  " if self._recorder else ""
        if self.console.is_terminal and self._recorder:
            self._lines.append(since + text)
        else:
            self.console.print(since + text, markup=False, highlight=False, soft_wrap=True)

    async def run(self, recorder: Recorder) -> None:
        """Until cancelled; draws only on a terminal."""
        self._recorder = recorder
        if not self.console.is_terminal:
            await asyncio.Event().wait()
        with Live(console=self.console, refresh_per_second=5, transient=True) as live:
            while True:
                live.update(self._render(recorder))
                await asyncio.sleep(0.2)

    def _render(self, recorder: Recorder) -> Group:
        timeline = recorder.timeline
        colour = {
            job: _PHASE_COLOURS[i % len(_PHASE_COLOURS)] for i, job in enumerate(timeline.submitted)
        }
        nodes = Table(title="Nodes", expand=True)
        nodes.add_column("node")
        nodes.add_column("pods, one GPU each")
        for node in sorted(recorder.nodes, key=lambda node: str(node["metadata"]["name"])):
            name = node["metadata"]["name"]
            here = [pod for pod in timeline.pods.values() if pod.node == name and pod.live]
            nodes.add_row(
                name,
                "  ".join(
                    f"[{colour[pod.job]}]{'◌' if pod.told_to_leave else '●'} {pod.name}[/]"
                    for pod in sorted(here, key=lambda pod: pod.name)
                ),
            )
        jobs = Table(title="Jobs", expand=True)
        for heading in ("job", "min..max", "wanted", "running", "step", "steps/s", "state"):
            jobs.add_column(heading)
        for job in recorder.jobs:
            name, status = job["metadata"]["name"], job.get("status", {})
            elastic, training = status.get("elastic", {}), recorder.training.get(name, {})
            true = [c["type"] for c in status.get("conditions", []) if c["status"] == "True"]
            over = name in timeline.finished
            jobs.add_row(
                f"[{colour.get(name, 'white')}]{name}[/]",
                f"{elastic.get('min', '?')}..{elastic.get('max', '?')}",
                str(elastic.get("desired", "")),
                str(timeline.running(name)),
                str(training.get("step", "")),
                "" if over else f"{training.get('steps_per_second') or 0:.1f}",
                true[-1] if true else "",
            )
        return Group(nodes, jobs, Panel("\n".join(self._lines), title="Decisions and events"))
