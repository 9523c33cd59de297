"""`python -m embedded_cluster.kubelet`: virtual nodes for any API server."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from embedded_cluster.kubelet.kubelet import Options, serve
from embedded_cluster.kubelet.prepared import PreparedPython
from volcano_elastic.kube.client import ApiError
from volcano_elastic.kube.kubeconfig import KubeconfigError

_MOST = 1_000_000


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="volcano-elastic local kubelet",
        description="Serves virtual nodes node-1..node-N; the pods bound to them run as local "
        "processes (their images are ignored), or only pretend to run.",
    )
    parser.add_argument("--kubeconfig", help="default: $KUBECONFIG, then ~/.kube/config")
    parser.add_argument("--nodes", type=_number(int, 1), help="default: 1")
    parser.add_argument(
        "--gpus-per-node", type=_number(int, 0), help="nvidia.com/gpu of each; default: 0"
    )
    parser.add_argument("--mode", choices=("process", "fake"), help="default: process")
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
        type=_number(float, 0.001),
        metavar="SECONDS",
        help="before a container's second restart; it doubles up to 30 times that, and begins "
        "anew after 60 times that; default: 10, as Kubernetes has it",
    )
    parser.add_argument(
        "--node-monitor-grace-period",
        type=_number(float, 0.001),
        metavar="SECONDS",
        help="mark nodes that were silent for so long, taint them and evict their pods, as "
        "kube-controller-manager does (40 there); default: leave it to that",
    )
    parser.add_argument(
        "--prepared",
        # At once: what it imports may start threads later, which a fork would lack.
        type=PreparedPython,
        metavar="MODULE",
        help="for tests: fork the containers that MODULE takes from a process that has imported it",
    )
    return parser


def _number(kind: type[int] | type[float], least: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = kind(-1)
        if not least <= value <= _MOST:
            what = "a whole number" if kind is int else "seconds"
            raise argparse.ArgumentTypeError(
                f"expected {what} from {least:g} to {_MOST}, found {text!r}"
            )
        return value

    return read


async def _until_signal(options: Options) -> None:
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await serve(options)


def main(argv: Sequence[str] | None = None) -> int:
    # What isn't given is as Options have it.
    options = parser().parse_args(argv, namespace=Options())
    logging.basicConfig(level=logging.INFO, format="%(asctime)s kubelet %(levelname)s %(message)s")
    try:
        asyncio.run(_until_signal(options))
    except (KubeconfigError, ApiError, OSError) as error:
        print(f"kubelet: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
