"""SGLang as shipped: what the guard is for, on the release that had the incident's fault."""

import pytest
from conftest import RELEASE
from pair import Pair, ask
from prompts import OVERSIZE, TENANT

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
