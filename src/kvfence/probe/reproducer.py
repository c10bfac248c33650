"""A leak as a shell script: what one tenant sends, what another asks, and a look for the first one's marker.

It needs a shell, curl, gzip and base64, and reads keys and values of headers from the environment. Prompts stand in it
whole, packed where they are long: they are made up, from the probe's seed, and hold nothing of anybody's; a script that
had to ask the probe for them would reproduce nothing without it. The answer that was seen is *not* in it, and it prints
none.
"""

import base64
import gzip
import re
import shlex
from collections.abc import Sequence
from itertools import pairwise

from msgspec import json

from kvfence.evidence.visible import plain
from kvfence.probe.exchange import Ask, Exchange, Record, Target
from kvfence.probe.finding import Finding, Severity, Sight

TRIES = 20
PACKED_FROM = 2_000
"""Longer bodies are packed."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def reproduce(record: Record, found: Sequence[Finding]) -> str | None:
    """Write the script of the gravest leak; None where there is none, or nothing that planted it."""
    for finding in found:
        for sight in finding.sights if finding.severity is Severity.LEAK else ():
            seed = _planted_by(record, sight)
            if seed is not None:
                return _script(record, seed, sight)
    return None


def _planted_by(record: Record, sight: Sight) -> Exchange | None:
    """Give the last request of the other tenant that was sent before the answer ended."""
    before = [
        each
        for each in record.exchanges
        if each.ask.tenant == sight.of and each.ask.own and each.sent_s < sight.exchange.ended_s
    ]
    whole = [each for each in before if each.ended_s <= sight.exchange.sent_s]
    return max(whole or before, key=lambda each: each.sent_s, default=None)


def _script(record: Record, seed: Exchange, sight: Sight) -> str:
    target = record.target
    url = shlex.quote(plain(target.url.rstrip("/") + target.path))
    words = "|".join(sorted({pair for marker in seed.ask.own for pair in _pairs(marker)}))
    options = "".join(f"    {each} \\\n" for each in _options(target))
    return f"""#!/bin/sh
# One tenant sends a prompt with markers, another asks; a marker in the second answer is a leak.
# Requests {seed.ask.number} and {sight.exchange.ask.number} of a run with seed {record.seed}. Prompts are made up.
# Exit 1: seen; 0: not seen in {TRIES} tries. A leak that needs more tenants or load may need the whole probe.
set -u
ask() {{ # 1: the key, or nothing
  curl -sSi --max-time 330 -H 'content-type: application/json' \\
{options}    ${{1:+-H "authorization: Bearer $1"}} --data-binary @- {url}
}}
seed() {{
{_body(seed.ask, target)}
}}
read_back() {{
{_body(sight.exchange.ask, target)}
}}
for try in $(seq {TRIES}); do
  seed | ask "{_key(target, seed.ask.tenant)}" > /dev/null
  if read_back | ask "{_key(target, sight.exchange.ask.tenant)}" | tr -d '\\n' | grep -qiE {shlex.quote(words)}; then
    echo "seen in try $try: the answer holds a marker that only the other tenant sent"
    exit 1
  fi
done
echo "not seen in {TRIES} tries"
"""


def _pairs(marker: str) -> list[str]:
    """Give a marker's words, two and two: a stream cuts answers into pieces, and a leak may lose a word."""
    words = list(map(re.escape, marker.split()))
    return [f"{one}[^a-z0-9]+{other}" for one, other in pairwise(words)] or words


def _options(target: Target) -> list[str]:
    """Give what curl is told of certificates and headers; a header's value stands in its variable alone."""
    trust = ["--insecure"] if target.insecure else [f"--cacert {shlex.quote(plain(target.ca))}"] if target.ca else []
    return trust + [
        f'-H {shlex.quote(name + ": ")}"{_value(variable)}"' for name, variable in sorted(target.headers.items())
    ]


def _key(target: Target, tenant: str) -> str:
    return _value(target.keys.get(tenant, ""))


def _value(variable: str) -> str:
    """Give what the shell takes a variable's value from; nothing where no shell can name it."""
    return f"${{{variable}:-}}" if _VARIABLE.fullmatch(variable) else ""


def _body(ask: Ask, target: Target) -> str:
    """Give a command that writes the request's body. Not streamed: pieces of a stream would part the words."""
    prompt = (
        {"messages": [{"role": "user", "content": ask.prompt}]} if "chat" in target.path else {"prompt": ask.prompt}
    )
    raw = json.encode(
        {"model": plain(target.model), **prompt, "max_tokens": ask.max_tokens, "temperature": ask.temperature}
    )
    if len(raw) <= PACKED_FROM:
        return f"  printf %s {shlex.quote(raw.decode())}"
    packed = base64.encodebytes(gzip.compress(raw, mtime=0)).decode().strip()
    return f"  base64 -d <<'END' | gzip -dc\n{packed}\nEND"
