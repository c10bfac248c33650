"""One examination, from what a caller named to findings: gather, assemble, run. The command line is a skin on it."""

import datetime
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct, structs

from kvfence.audit import baseline as baselines
from kvfence.audit import bundle as bundles
from kvfence.audit.deployment import Deployment, Stated, assemble
from kvfence.audit.ignores import load_ignores
from kvfence.audit.inputs import Numbers, facts_of_numbers, stated_in_files
from kvfence.audit.report.document import Document, make_document
from kvfence.audit.runner import Audit, run, with_ignores
from kvfence.core.errors import EvidenceError
from kvfence.core.verdict import Severity
from kvfence.evidence.deployment import Spec
from kvfence.evidence.facts import SourceFacts
from kvfence.evidence.gather import gather


class Request(Struct, frozen=True):
    """What to look at. numbers: sources that a caller stated as numbers."""

    specs: tuple[Spec, ...] = ()
    stated: Stated = Stated()
    numbers: tuple[SourceFacts, ...] = ()
    baseline: tuple[SourceFacts, ...] | None = None


class Examined(Struct, frozen=True):
    """What was found, and all it follows from."""

    request: Request
    facts: tuple[SourceFacts, ...]
    stated: Stated
    deployment: Deployment
    audit: Audit


def with_numbers(request: Request, numbers: Numbers, baseline: Path | None) -> Request:
    """Add a caller's numbers and an earlier audit to a request."""
    before = None if baseline is None else baselines.load(baseline)
    return structs.replace(request, numbers=tuple(facts_of_numbers(numbers)), baseline=before)


def gather_facts(request: Request) -> list[SourceFacts]:
    """Read the sources.

    Raises:
        EvidenceError: none was named, or one cannot be read.
    """
    if not request.specs and not request.numbers:
        raise EvidenceError("nothing to look at: name logs, manifests or URLs, such as `prefill.log decode.log`")
    return [*gather(request.specs), *request.numbers]


def examine(request: Request) -> Examined:
    """Read the sources and ask every rule."""
    facts = gather_facts(request)
    stated = stated_in_files(request.specs, request.stated)
    deployment = assemble(facts, stated, request.baseline)
    return Examined(request, tuple(facts), stated, deployment, run(deployment))


def accepted(examined: Examined, path: Path | None) -> tuple[Examined, list[str]]:
    """Mark the findings that a person has accepted; give notes about acceptances that mark nothing."""
    if path is None:
        return examined, []
    today = datetime.datetime.now(datetime.UTC).date()
    audit, notes = with_ignores(examined.audit, load_ignores(path), today)
    return structs.replace(examined, audit=audit), notes


def document_of(examined: Examined, fail_on: Severity, notes: Sequence[str]) -> Document:
    """Put the document together; what the sources' readers could not settle is among its notes."""
    problems = [f"{source.name}: {problem}" for source in examined.facts for problem in source.problems]
    return make_document(examined.audit, examined.deployment, fail_on, [*notes, *dict.fromkeys(problems)])


def save_baseline(path: Path, examined: Examined) -> None:
    """Keep the facts for the next audit."""
    baselines.save(path, examined.facts)


def save_bundle(path: Path, examined: Examined) -> None:
    """Keep facts, digests of the files, versions of the rules and verdicts in one file."""
    files = [Path(name) for name in dict.fromkeys(source.name.partition("#")[0] for source in examined.facts)]
    digests = [bundles.digest_file(file) for file in files if file.is_file()]
    inputs = bundles.inputs_of(examined.facts, examined.stated, examined.request.baseline)
    bundles.write(path, inputs, examined.audit.findings, digests)
