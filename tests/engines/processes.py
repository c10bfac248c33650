"""Engine processes on loopback: ports, waiting until they answer, ending them with all their children."""

import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx

START_S = 900
"""Two engines import torch in six processes: 70 s on two idle cores, minutes on busy ones."""

END_S = 20

PORTS = range(20_000, 32_000)


def free_ports(number: int) -> list[int]:
    """Give ports that nobody listens on; all are held until all are known.

    They lie below those that a system takes for outgoing connections: an engine listens only once it has loaded.
    """
    held: list[socket.socket] = []
    while len(held) < number:
        each = socket.socket()
        try:
            each.bind(("127.0.0.1", random.choice(PORTS)))
        except OSError:
            each.close()
            continue
        held.append(each)
    ports: list[int] = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


class Processes:
    """Processes that share a folder of logs; each leads a group of its own."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: list[str], environment: Mapping[str, str]) -> None:
        """Start one under a name that has none running; its words go to ``name.log``."""
        with (self.logs / f"{name}.log").open("ab") as log:
            self._started[name] = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_until_ready(self, urls: list[str]) -> None:
        """Ask until each URL answers 200.

        Raises:
            SystemExit: a process ended, or the time is over; the logs say why.
        """
        deadline = time.monotonic() + START_S
        waiting = list(urls)
        with httpx.Client(timeout=5, trust_env=False) as client:
            while waiting:
                if any(process.poll() is not None for process in self._started.values()):
                    raise SystemExit(f"an engine ended at its start; see {self.logs}")
                if time.monotonic() > deadline:
                    raise SystemExit(f"no answer from {waiting[0]} after {START_S} s; see {self.logs}")
                try:
                    if client.get(waiting[0]).status_code == 200:
                        waiting.pop(0)
                        continue
                except httpx.HTTPError:
                    pass
                time.sleep(1)

    def group(self, name: str) -> int:
        """Give a process's group, itself with all its children."""
        return self._started[name].pid

    def is_running(self, name: str) -> bool:
        """Has this one been started, and not ended?"""
        process = self._started.get(name)
        return process is not None and process.poll() is None

    def end(self, *names: str, sent: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGKILL)) -> None:
        """End each process group, all where none is named: asked first, then killed."""
        ending = [self._started[name] for name in names or reversed(self._started)]
        for each in sent:
            for process in ending:
                try:
                    os.killpg(process.pid, each)
                except ProcessLookupError:
                    continue
            deadline = time.monotonic() + END_S
            while any(process.poll() is None for process in ending) and time.monotonic() < deadline:
                time.sleep(0.2)
        for name in names:
            del self._started[name]


@contextmanager
def processes(logs: Path) -> Iterator[Processes]:
    """Give a place for processes, and end them all on leaving."""
    held = Processes(logs)
    try:
        yield held
    finally:
        held.end()
