"""Two network namespaces joined by one cable, as two hosts; the cable can be cut in two ways and mended."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

PREFILL_HOST, DECODE_HOST = "10.251.7.1", "10.251.7.2"

Cut = Literal["link", "drop"]
"""The link goes down, which both ends notice; or packets vanish, which neither does."""


class TwoHosts:
    """The hosts of a test. Holds: both namespaces, until closed."""

    def __init__(self) -> None:
        self.names = [f"kvf{os.getpid()}{end}" for end in "pd"]
        _run("ip", "link", "add", self.names[0], "type", "veth", "peer", "name", self.names[1])
        for name, host in zip(self.names, (PREFILL_HOST, DECODE_HOST), strict=True):
            _run("ip", "netns", "add", name)
            _run("ip", "link", "set", name, "netns", name)
            self.inside(name, "ip", "addr", "add", f"{host}/24", "dev", name)
            self.inside(name, "ip", "link", "set", name, "up")
            self.inside(name, "ip", "link", "set", "lo", "up")

    @property
    def prefill(self) -> str:
        """Where prefill lives."""
        return self.names[0]

    @property
    def decode(self) -> str:
        """Where decode lives."""
        return self.names[1]

    def inside(self, name: str, *command: str) -> None:
        """Run a command in a namespace."""
        _run("ip", "netns", "exec", name, *command)

    def cut(self, how: Cut) -> None:
        """Part the two."""
        if how == "link":
            self.inside(self.decode, "ip", "link", "set", self.decode, "down")
            return
        for chain, way in (("INPUT", "-i"), ("OUTPUT", "-o")):
            self.inside(self.decode, "iptables", "-A", chain, way, self.decode, "-j", "DROP")

    def mend(self, how: Cut) -> None:
        """Join them again."""
        if how == "link":
            self.inside(self.decode, "ip", "link", "set", self.decode, "up")
        else:
            self.inside(self.decode, "iptables", "-F")

    def close(self) -> None:
        """Take both away; the cable goes with them."""
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@contextmanager
def two_hosts() -> Iterator[TwoHosts]:
    """Give two hosts for a while."""
    hosts = TwoHosts()
    try:
        yield hosts
    finally:
        hosts.close()
