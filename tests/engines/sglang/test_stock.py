"""SGLang as shipped: what the guard is for, on the release that had the incident's fault."""

from pathlib import Path

import pytest
from conftest import RELEASE
from door import Front, opened
from misstated import misstating
from pair import NAME, Pair, Site, ask
from prompts import OVERSIZE, PATIENT, TENANT
from seen import limits_of, total

pytestmark = [
    pytest.mark.timeout(2400),
    pytest.mark.skipif(RELEASE != "0.5.19", reason="later releases refuse at prefill"),
]


def test_the_same_prompt_without_the_guard_is_answered(stock: Pair) -> None:
    """As shipped, 0.5.19 answers the refused prompt with 200, from pages that nobody wrote for it."""
    ask(stock, TENANT, 8)
    answer = ask(stock, OVERSIZE, 48)
    assert answer.status_code == 200
    assert answer.json()["usage"]["prompt_tokens"] > 1018


def test_the_gateway_before_it_withholds_the_answer(stock: Pair, site: Site, tmp_path: Path) -> None:
    """Prefill counts 1 token of 1,024, decode all of them: the client gets no text, and the gateway counts it."""
    ask(stock, TENANT, 8)
    with misstating(stock.prefill, limits_of(stock.decode)) as prefill:
        front = Front("sglang", site.model, NAME, [prefill.url], [stock.decode])
        with opened(front, tmp_path) as door:
            answer = door.ask("ada", [100] * 1024, 48)
            assert (1024, 1) in prefill.counts
            assert (answer.status_code, answer.json()["error"]["code"]) == (500, "kv_integrity")
            assert PATIENT not in answer.text
            labels = {"guard": "count-matches", "place": "gateway", "answer": "refuse"}
            assert total(door.url, "kvfence_guard_decisions_total", **labels) == 1
            assert door.ask("ada", "Good morning.").status_code == 200
