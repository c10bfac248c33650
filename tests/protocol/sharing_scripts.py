"""Scripts in which prompts begin alike. Pages hold 4 tokens; read ``scripts.py`` first."""

from msgspec.structs import replace

from kvfence.protocol.events import BatchEnded, PassBegan, PassEnded, Received, Verified
from kvfence.protocol.messages import Abort, Commit
from tests.protocol.conversation import Conversation, attempt
from tests.protocol.scripts import script


def primed(prefill_pages: int = 8) -> Conversation:
    """A prompt of 10 tokens was handed off and adopted: two full pages stay at prefill, under serial 1."""
    talk = Conversation(prefill_pages=prefill_pages, decode_pages=24, cached_lots_max=8)
    talk.adopt(1, 10)
    return talk


@script
def prefix_shared() -> Conversation:
    """The full pages of a committed prompt stay; the next prompt holds, sends and names them, and computes the rest."""
    talk = primed()
    talk.found[2] = ((1, 2),)
    talk.adopt(2, 11)
    return talk


@script
def whole_prompt_known() -> Conversation:
    """A prompt that ends with its second page shares the first alone: the last token's page is computed."""
    talk = primed()
    talk.found[2] = ((1, 2),)
    talk.grant(2, 8)
    return talk


@script
def two_hold_one_page() -> Conversation:
    """Two prompts at work hold the same pages; they stay as long as one of them does, and after it."""
    talk = primed()
    talk.found |= {2: ((1, 2),), 3: ((1, 2),)}
    talk.grant(2, 10)
    talk.grant(3, 9)
    for counter in (3, 2):
        talk.compute(counter)
        talk.end_batches(counter)
        talk.deliver_all()
        talk.feed("D", Verified(attempt(counter), (), digests_match=True))
        talk.deliver_all()
    return talk


@script
def prefix_of_another_tenant() -> Conversation:
    """The driver's hint is wrong: the pages belong to another salt, so the prompt is computed from its first token."""
    talk = primed()
    talk.salt = "salt-b"
    talk.found[2] = ((1, 2),)
    talk.grant(2, 11)
    return talk


@script
def prefix_not_verified() -> Conversation:
    """The driver's hint is early: the pages were granted but not handed off yet, so they are not shared."""
    talk = Conversation(decode_pages=24, cached_lots_max=8)
    talk.grant(1, 10)
    talk.found[2] = ((1, 2),)
    talk.grant(2, 11)
    return talk


@script
def cached_pages_make_room() -> Conversation:
    """A grant takes free pages first, then those that nobody holds: of the least recently used lot the last ones."""
    talk = primed(prefill_pages=4)
    talk.adopt(2, 4)
    talk.grant(3, 8)
    return talk


@script
def waits_for_held_pages_alone() -> Conversation:
    """Shared pages that are held make nobody room; the hint is judged when there is room, and may be out of date."""
    talk = primed(prefill_pages=4)
    talk.found |= {2: ((1, 2),), 3: ((1, 2),)}
    talk.grant(2, 12)
    talk.grant(3, 16)
    talk.compute(2)
    talk.end_batches(2)
    talk.deliver_all()
    talk.feed("D", Verified(attempt(2), (), digests_match=True))
    talk.deliver_all()
    return talk


@script
def shared_page_is_anothers() -> Conversation:
    """A shared page shows another head: both who hold it end, the lot is quarantined when its last reader is done."""
    talk = primed()
    talk.found |= {2: ((1, 2),), 3: ((1, 2),), 4: ((1, 2),)}
    talk.grant(2, 10)
    talk.grant(3, 10)
    shared = talk.prefill.handoffs[attempt(2)].pages[0]
    talk.feed("P", PassBegan(2, (attempt(2),)))  # type: ignore[arg-type]
    talk.feed("P", PassEnded(2, bad=((attempt(2), (shared,)),)))  # type: ignore[arg-type]
    talk.deliver_all()
    for counter in (3, 2):
        for batch, _ in talk.prefill.handoffs[attempt(counter)].batches:
            talk.feed("P", BatchEnded(attempt(counter), batch, success=True, source_quiet=True))
    talk.deliver_all()
    talk.grant(4, 10)
    return talk


@script
def not_taken_is_not_shared() -> Conversation:
    """Decode did not take a hand-off that carried shared pages: they are free, nobody else shares them."""
    talk = primed()
    talk.found |= {2: ((1, 2),), 3: ((1, 2),)}
    talk.grant(2, 10)
    talk.compute(2)
    talk.end_batches(2)
    talk.deliver_all()
    talk.feed("D", Verified(attempt(2), (), digests_match=False))
    talk.take(Abort)
    talk.deliver_all()
    talk.grant(3, 10)
    return talk


@script
def shared_source_is_read_late() -> Conversation:
    """A failed write may still read shared pages: they are quarantined with the others, not shared any more."""
    talk = primed()
    talk.found[2] = ((1, 2),)
    talk.grant(2, 10)
    talk.compute(2)
    talk.end_batches(2, success=False)
    talk.deliver_all()
    return talk


@script
def known_elsewhere() -> Conversation:
    """Two equal prompts were computed at once: of the second only the pages stay that the first did not leave."""
    talk = Conversation(decode_pages=24, cached_lots_max=8)
    for counter, num_tokens in ((1, 8), (2, 12)):
        talk.grant(counter, num_tokens)
    for counter in (1, 2):
        talk.compute(counter)
        talk.end_batches(counter)
        while not any(isinstance(envelope.message, Commit) for _, envelope in talk.post):
            if talk.post:
                talk.deliver()
            else:
                talk.feed("D", Verified(attempt(counter), (), digests_match=True))
        number = next(n for n, (_, e) in enumerate(talk.post) if isinstance(e.message, Commit))
        _, envelope = talk.post.pop(number)
        known = Received(envelope, num_known=2 if counter == 2 else 0)
        talk.feed("P", known, f"<- D Commit #{counter} num_known={known.num_known}")
    return talk


@script
def no_lot_above_the_bound() -> Conversation:
    """Of lots that nobody holds at most the bound stay, the most recently used ones."""
    talk = Conversation(decode_pages=24, cached_lots_max=8)
    talk.nodes["P"] = replace(talk.prefill, cached_lots_max=1)
    talk.adopt(1, 4)
    talk.adopt(2, 5)
    return talk
