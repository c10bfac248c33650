"""What decode is given instead of an honest hand-off, and what it answers: the same cases stock and guarded.

Each case is played with prompts of its own, so that none finds another's pages in a cache. ``salt``: anything.
"""

import time
from typing import Any

import httpx
from pair import Pair, Sizes, complete, handed_off, prefilled, text_of

CODE = "ZX-4471-QUARTZ"


def secret(salt: str) -> str:
    """Give a tenant's prompt with a code in it, of about fifty tokens."""
    return (
        f"File {salt}. The vault code of tenant B is {CODE}. Nobody else may read this. "
        f"Question: what is the vault code of tenant B? Answer: the vault code of tenant B is"
    )


def tokens_of(pair: Pair, prompt: str) -> list[int]:
    """Give a prompt's token ids."""
    body = {"model": "smol", "prompt": prompt}
    answer = httpx.post(f"{pair.decode}/tokenize", json=body, timeout=60, trust_env=False)
    answer.raise_for_status()
    ids: list[int] = answer.json()["tokens"]
    return ids


def fill(pair: Pair, salt: str, requests: int = 6) -> None:
    """Let other tenants use prefill, so that pages which are free are theirs next."""
    for number in range(requests):
        complete(pair.prefill, f"Tenant {salt} {number} asks: " + "river stone cloud window garden " * 24, 1)


def short_count(pair: Pair, salt: str) -> Any:
    """Prefill computed one token (a placeholder); decode reserves as many pages for a whole prompt."""
    ids = tokens_of(pair, secret(salt))[:27]
    return complete(pair.decode, ids, 12, prefilled(pair, ids[:1]))


def stale(pair: Pair, salt: str) -> Any:
    """The lease ran out, others used the pages, and then decode reads them."""
    prompt = secret(salt)
    params = prefilled(pair, prompt)
    over = time.monotonic() + Sizes().lease_s + 1
    while time.monotonic() < over:
        time.sleep(0.5)
    complete(pair.prefill, "Are you there?", 1)  # leases end in steps
    fill(pair, salt)
    return complete(pair.decode, prompt, 12, params)


def forged_prompt(pair: Pair, salt: str) -> tuple[list[int], list[int]]:
    """Give a tenant's prompt, and one of another tenant of the same length that says nothing and ends alike."""
    victim = tokens_of(pair, secret(salt))
    mark = tokens_of(pair, f"{salt}")[-1]
    return victim, [mark] * (len(victim) - 1) + victim[-1:]


def forged(pair: Pair, salt: str) -> Any:
    """A tenant names the pages of another in the request: the answer comes from that one's prompt."""
    victim, own = forged_prompt(pair, salt)
    return complete(pair.decode, own, 12, prefilled(pair, victim))


def poisoned(pair: Pair, salt: str) -> Any:
    """After a forged hand-off: an honest request without one, which begins as the forged prompt did."""
    _, own = forged_prompt(pair, salt)
    return complete(pair.decode, [*own[:32], *tokens_of(pair, " The vault code of tenant B is")], 12)


def one_block_too_many(pair: Pair, salt: str) -> Any:
    """Prefill's prompt is a block longer than decode's: the tail is taken for the whole."""
    ids = tokens_of(pair, secret(salt))
    return complete(pair.decode, ids, 12, prefilled(pair, [*ids, *ids[:32]]))


def one_block_too_few(pair: Pair, salt: str) -> Any:
    """Prefill's prompt is a block shorter than decode's."""
    ids = tokens_of(pair, secret(salt))
    return complete(pair.decode, [*ids, *ids[:32]], 12, prefilled(pair, ids))


def out_of_range(pair: Pair, salt: str) -> Any:
    """The hand-off names a block that prefill does not have."""
    prompt = secret(salt)
    params = prefilled(pair, prompt)
    return complete(pair.decode, prompt, 12, {**params, "remote_block_ids": [[999_999, 999_998]]})


def replayed(pair: Pair, salt: str) -> Any:
    """A hand-off is used a second time, with the same prompt, before anybody has used its pages."""
    prompt = secret(salt)
    params = prefilled(pair, prompt)
    complete(pair.decode, prompt, 4, dict(params)).raise_for_status()
    return complete(pair.decode, prompt, 12, params)


def honest(pair: Pair, salt: str, max_tokens: int = 12) -> Any:
    """Nothing is wrong."""
    return handed_off(pair, secret(salt), max_tokens)


def as_alone(pair: Pair, salt: str, number: int = 10) -> int:
    """Of so many honest hand-offs, how many are answered as prefill alone goes on from its own blocks?

    Not all need be: near ties fall either way in bfloat16. Where blocks are wrong, next to none is.
    """
    same = 0
    for each in range(number):
        prompt = secret(f"{salt} {each}")
        same += text_of(handed_off(pair, prompt, 8)) == text_of(complete(pair.prefill, prompt, 8))
    return same


def alive(pair: Pair) -> bool:
    """Does decode still answer, alone?"""
    return bool(complete(pair.decode, "The capital of France is", 4).status_code == 200)


def written_by_hand(pair: Pair, salt: str) -> Any:
    """Somebody names blocks and an address in the open, with no seal."""
    prompt = secret(salt)
    params = {"do_remote_prefill": True, "do_remote_decode": False, "remote_engine_id": "x", "tp_size": 1}
    params |= {"remote_request_id": "r", "remote_host": "127.0.0.1", "remote_port": 9, "remote_block_ids": [[1, 2]]}
    return complete(pair.decode, prompt, 12, params)


def tampered(pair: Pair, salt: str) -> Any:
    """One character of the seal is another."""
    prompt = secret(salt)
    params = prefilled(pair, prompt)
    text = params["kvfence"]
    middle = len(text) // 2
    changed = "A" if text[middle] != "A" else "B"
    return complete(pair.decode, prompt, 12, {**params, "kvfence": text[:middle] + changed + text[middle + 1 :]})


def abandoned(pair: Pair, salt: str, after_s: float) -> None:
    """The client of a long prompt leaves decode while its blocks travel."""
    prompt = f"{salt}: " + "river stone cloud window garden " * 40
    params = prefilled(pair, prompt)
    body = {"model": "smol", "prompt": prompt, "max_tokens": 64, "temperature": 0, "kv_transfer_params": params}
    try:
        httpx.post(f"{pair.decode}/v1/completions", json=body, timeout=after_s, trust_env=False)
    except httpx.TimeoutException:
        pass
