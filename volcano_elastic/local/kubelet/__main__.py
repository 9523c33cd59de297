"""`python -m volcano_elastic.local.kubelet`: virtual nodes for any API server."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from volcano_elastic.kube.client import ApiError
from volcano_elastic.kube.kubeconfig import KubeconfigError
from volcano_elastic.local.kubelet.kubelet import Options, serve
from volcano_elastic.local.kubelet.lifecycle import BackOff
from volcano_elastic.local.kubelet.log_server import Tls


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="volcano-elastic local kubelet",
        description="Serves virtual nodes node-1..node-N; the pods bound to them run as local "
        "processes (their images are ignored), or only pretend to run.",
    )
    parser.add_argument("--kubeconfig", help="default: $KUBECONFIG, then ~/.kube/config")
    parser.add_argument("--nodes", type=_positive, default=1, help="default: 1")
    parser.add_argument(
        "--gpus-per-node", type=_natural, default=0, help="nvidia.com/gpu of each; default: 0"
    )
    parser.add_argument("--mode", choices=("process", "fake"), default="process")
    parser.add_argument(
        "--state-dir", type=Path, help="where pods' logs are kept; default: a temporary folder"
    )
    parser.add_argument(
        "--serve-logs",
        nargs=3,
        type=Path,
        metavar=("CERT", "KEY", "CLIENT_CA"),
        help="PEM files: serve the containers' logs, by HTTPS on 127.0.0.1, to a kube-apiserver "
        "whose certificate CLIENT_CA signed; default: don't",
    )
    parser.add_argument(
        "--plain",
        action="store_true",
        help="plain processes, even where namespaces are allowed",
    )
    parser.add_argument(
        "--restart-back-off",
        type=_seconds,
        default=10.0,
        metavar="SECONDS",
        help="before a container's second restart; it doubles up to 30 times that, and begins "
        "anew after 60 times that; default: 10, as Kubernetes has it",
    )
    parser.add_argument(
        "--node-monitor-grace-period",
        type=_seconds,
        metavar="SECONDS",
        help="mark nodes that were silent for so long, taint them and evict their pods, as "
        "kube-controller-manager does (40 there); default: leave it to that",
    )
    return parser


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected seconds above 0, found {text}")
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, found {value}")
    return value


def _natural(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"expected at least 0, found {value}")
    return value


async def _until_signal(kubeconfig: str | None, options: argparse.Namespace, state: Path) -> None:
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await serve(
            kubeconfig,
            Options(
                nodes=options.nodes,
                gpus=options.gpus_per_node,
                mode=options.mode,
                state_dir=state,
                tls=Tls(*options.serve_logs) if options.serve_logs else None,
                plain=options.plain,
                back_off=BackOff.beginning_with(options.restart_back_off),
                node_grace=options.node_monitor_grace_period,
            ),
        )


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s kubelet %(levelname)s %(message)s")
    try:
        with contextlib.ExitStack() as stack:
            state = options.state_dir or Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="volcano-elastic-kubelet-"))
            )
            state.mkdir(parents=True, exist_ok=True)
            asyncio.run(_until_signal(options.kubeconfig, options, state.resolve()))
    except (KubeconfigError, ApiError, OSError) as error:
        print(f"kubelet: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
