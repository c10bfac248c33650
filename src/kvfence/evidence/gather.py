"""Gathers facts: each source is opened, told apart by content, read: one ``SourceFacts`` a process and rank.

Nothing is summed over ranks; a role comes from the text or from the caller, never from a name. Not for: judging.
"""

from collections.abc import Iterable, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path

import msgspec

from kvfence.evidence import (
    commands,
    dynamo,
    kvfence_server,
    llama_cpp,
    lmdeploy,
    metrics,
    routers,
    sglang,
    sglang_lines,
    tensorrt_llm,
    tgi,
    vllm,
)
from kvfence.evidence.defaults import add_defaults
from kvfence.evidence.deployment import Spec, is_deployment, load_deployment, specs_of
from kvfence.evidence.facts import NOT_SEEN, Event, Known, Origin, SourceFacts, Unknown
from kvfence.evidence.readings import Form, Found, Notebook, Place, Reading
from kvfence.evidence.scan import Scan
from kvfence.evidence.signatures import SIGNATURES
from kvfence.evidence.sources import HEAD_BYTES, SPEC_STDIN, Block, Opened, expand, open_bytes, open_source, rotated

ENGINES = {
    module.ENGINE: module for module in (sglang, vllm, tensorrt_llm, lmdeploy, llama_cpp, tgi, dynamo, kvfence_server)
}
FORMS: tuple[Form, ...] = tuple(
    chain.from_iterable(
        module.FORMS
        for module in (
            sglang_lines,
            vllm,
            tensorrt_llm,
            lmdeploy,
            llama_cpp,
            tgi,
            dynamo,
            kvfence_server,
            metrics,
            commands,
            routers,
        )
    )
)

_FIELDS = {field.name for field in msgspec.structs.fields(SourceFacts)} - {"name", "kind", "events", "problems"}
_FLAGS = {field.name for field in msgspec.structs.fields(SourceFacts) if "bool" in str(field.type)}
_SHARED = ("version", "role", "connector", "failure_policy", "transfer_backend")


def gather(specs: Sequence[Spec | str]) -> list[SourceFacts]:
    """Read every source and give its facts, one for each engine process and rank found in it.

    Raises:
        EvidenceError: a source is not there or cannot be read.
    """
    found: list[SourceFacts] = []
    for given in specs:
        spec = Spec(given) if isinstance(given, str) else given
        found += _gather_one(spec)
    return found


def _gather_one(spec: Spec) -> list[SourceFacts]:
    from kvfence.evidence import endpoints

    if endpoints.is_url(spec.source):
        return [_with_role(facts, spec) for facts in endpoints.read_endpoint(spec.source, spec.token_variable)]
    found: list[SourceFacts] = []
    for names in rotated(expand(spec.source)):
        name = names[-1]
        if name != SPEC_STDIN and is_deployment(name):
            inner = specs_of(load_deployment(name), str(Path(name).parent))
            found += gather([each for each in inner if each.source != name])
            continue
        facts = read_set(names) if len(names) > 1 else read_opened(open_source(name))
        found += [_with_role(each, spec) for each in facts]
    return found


def _with_role(facts: SourceFacts, spec: Spec) -> SourceFacts:
    if spec.role is None:
        return facts
    problems = facts.problems
    if spec.role == "single" and isinstance(facts.role, Known) and facts.role.value in ("prefill", "decode"):
        problem = f"the caller says single, the text says {facts.role.value}: the text holds"
        return msgspec.structs.replace(facts, problems=(*problems, problem))
    if isinstance(facts.role, Known) and facts.role.value != spec.role and not facts.role.default_of:
        problems = (*problems, f"the caller says {spec.role}, the text says {facts.role.value}")
    return msgspec.structs.replace(
        facts, role=Known(spec.role, Origin(facts.name, key="given by the caller")), problems=problems
    )


def read_set(names: list[str]) -> list[SourceFacts]:
    """The facts of a rotated log, oldest file first; each quote names its own file."""
    scan = Scan(names[-1], FORMS)
    for name in names:
        opened = open_source(name)
        with closing(opened):
            scan.feed(opened.blocks(), name)
        scan.problems += [f"{name}: {problem}" for problem in opened.problems]
    return facts_of_scan(scan, "log")


def read_text(name: str, text: str | bytes) -> list[SourceFacts]:
    """The facts of a text that is already here."""
    return read_opened(open_bytes(name, text if isinstance(text, bytes) else text.encode()))


def read_opened(opened: Opened) -> list[SourceFacts]:
    """The facts of one open source, which is closed afterwards."""
    with closing(opened):
        return _read_opened(opened)


def _read_opened(opened: Opened) -> list[SourceFacts]:
    from kvfence.evidence.documents import read_document

    blocks = opened.blocks()
    first = next(blocks, Block(b"", 1))
    whole = read_document(opened.name, first, blocks)
    if isinstance(whole, list):
        return whole
    scan = Scan(opened.name, FORMS)
    scan.feed(whole)
    scan.problems += opened.problems
    kind = kind_of_text(first.data[:HEAD_BYTES])
    return facts_of_scan(scan, kind)


def kind_of_text(head: bytes) -> str:
    """Whether a text is a dump of metrics or a log, by its first lines."""
    lines = [line for line in head.splitlines()[:50] if line.strip()]
    samples = sum(
        line.startswith((b"# TYPE", b"# HELP", b"sglang:", b"vllm:", b"process_", b"python_")) for line in lines
    )
    return "metrics" if lines and samples * 2 > len(lines) else "log"


def facts_of_scan(scan: Scan, kind: str) -> list[SourceFacts]:
    """The facts of a scanned text: what holds for a whole process is given to each of its ranks."""
    scan.settle_counts()
    _join_only_command(scan)
    problems = list(scan.problems)
    if scan.truncated_line:
        problems.append("a line of more than a mebibyte was read in part")
    if scan.sampled:
        problems.append(f"{len(scan.sampled)} forms of line came very often: read in part, counted in full")
    shared = scan.books.get(("", None))
    one_server = kind == "endpoint" or len(_processes(scan)) == 1
    found = []
    for (process, rank), book in sorted(scan.books.items(), key=lambda item: (item[0][0], item[0][1] or 0)):
        if _is_base(scan, process, rank, one_server):
            continue
        whole = Notebook(scan.name, Place(process, rank))
        whole.merge(book)
        if rank is not None and (base := scan.books.get((process, None))) is not None:
            whole.merge(base)
        if process and shared is not None and one_server:
            whole.merge(shared)
        _lend(scan, whole)
        whole.problems += problems
        only_asked_for = "command_engine" in whole and not any(name for name in whole.engines)
        found.append(facts_of(whole, "command" if only_asked_for else kind, _events(scan, process, rank)))
    return found or [SourceFacts(scan.name, kind, problems=tuple(problems))]


def _lend(scan: Scan, whole: Notebook) -> None:
    """What one rank alone printed and all ranks of a process share."""
    for (process, rank), book in scan.books.items():
        if process == whole.place.process and rank is not None and rank != whole.place.dp_rank:
            for name in _SHARED:
                if name not in whole and (chosen := book.choose(name)) is not None:
                    whole.add(Found(name, chosen.value, chosen.weight, chosen.default_of), chosen.origin)


def _processes(scan: Scan) -> set[str]:
    return {process for process, _ in scan.books if process}


def _is_base(scan: Scan, process: str, rank: int | None, one_server: bool) -> bool:
    """Whether a notebook only completes others: a process's unranked lines, or what one server says as a whole."""
    if rank is None and any(other == process and each is not None for other, each in scan.books):
        return True
    return process == "" and one_server and bool(_processes(scan))


def _join_only_command(scan: Scan) -> None:
    """One launch command in a text belongs to whatever else the text says; several are processes of their own."""
    found = [key for key in scan.books if key[0].startswith(commands.COMMAND_PROCESS)]
    if len(found) != 1 or len(scan.books) == 1:
        return
    book = scan.books.pop(found[0])
    target = scan.books.setdefault(("", None), Notebook(scan.name))
    target.merge(book)
    if found[0] in scan.events:
        scan.events.setdefault(("", None), {}).update(scan.events.pop(found[0]))


def _events(scan: Scan, process: str, rank: int | None) -> tuple[Event, ...]:
    keys = {(process, rank), (process, None)} | ({("", None)} if len(_processes(scan)) <= 1 else set())
    found: dict[str, Event] = {}
    for key in keys:
        for name, counted in scan.events.get(key, {}).items():
            if name in SIGNATURES and name not in found:
                found[name] = Event(name, counted.count, counted.first, counted.last)
    return tuple(found[name] for name in SIGNATURES if name in found)


def facts_of(book: Notebook, kind: str, events: Iterable[Event] = ()) -> SourceFacts:
    """The facts of one notebook: each engine works out what follows, then the readings that hold are taken."""
    engine = _engine(book)
    for name, module in ENGINES.items():
        if name in book.engines or name == engine:
            module.derive(book)
    add_defaults(book, engine)
    if book.place.dp_rank is not None:
        book.add(Found("dp_rank", book.place.dp_rank), _first_origin(book))
    values: dict[str, object] = {}
    for name in _FIELDS:
        values[name] = _fact(book, name)
    if engine and "engine" not in book:
        values["engine"] = Known(engine, _first_origin(book))
    name = book.source + (f"#{book.place.process}" if book.place.process else "")
    if book.place.dp_rank is not None:
        name += f"#DP{book.place.dp_rank}"
    facts = SourceFacts(name, kind, events=tuple(events), problems=tuple(dict.fromkeys(book.problems)))
    return msgspec.structs.replace(facts, **values)


def _first_origin(book: Notebook) -> Origin:
    rows = [row[0].origin for name in book.names() if (row := book.all(name))]
    return min(rows, key=lambda origin: origin.line or 0) if rows else Origin(book.source)


def _engine(book: Notebook) -> str:
    named = book.choose("engine")
    if named is not None:
        return str(named.value)
    command = book.choose("command_engine")
    counts = {name: count for name, count in book.engines.items() if name}
    if counts:
        inner = {name: count for name, count in counts.items() if name != dynamo.ENGINE} or counts
        return max(inner, key=lambda name: inner[name])
    return str(command.value) if command is not None else ""


def _fact(book: Notebook, name: str) -> Known[object] | Unknown:
    chosen = book.choose(name)
    if chosen is None:
        return NOT_SEEN
    rivals = _rivals(book, name, chosen)
    if rivals and name == "role":
        return Unknown(f"the text says both {rivals[0].value} (line {rivals[0].origin.line}) and {chosen.value}")
    if rivals:
        first = rivals[0]
        book.problems.append(
            f"{name} is {first.value} at line {first.origin.line} and {chosen.value} at line "
            f"{chosen.origin.line}: the last holds"
        )
    value = bool(chosen.value) if name in _FLAGS else chosen.value
    return Known(value, chosen.origin, chosen.default_of)


def _rivals(book: Notebook, name: str, chosen: Reading) -> list[Reading]:
    return [each for each in book.all(name) if each.weight == chosen.weight and each.value != chosen.value]
