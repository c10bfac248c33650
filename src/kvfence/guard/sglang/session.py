"""Decode's receiving session, made new: the fence that ends every write that was ever posted to the old one.

Over Mooncake a write may land long after its sender is dead or has given up. It lands in the session that it was
posted to; once that session's engine is destroyed, it lands nowhere (``kvfence.wire.mooncake``).
"""

import socket
from collections.abc import Iterable
from typing import Any

CONNECT_S = 1.0

AGAIN_S = 10.0
"""Between two sessions; destroying an engine stops this process for up to a second."""


def rebuild(manager: Any, receivers: Iterable[Any]) -> str:
    """Open another engine over the same buffers, destroy the old one, and introduce the new one to every prefill.

    ``receivers``: those that have offered nothing yet; they go on in the new session.
    Returns the old session, which may live on where somebody else holds its engine: ask ``has_ended``.
    """
    shared = manager.engine
    old_session = str(shared.session_id)
    fresh = type(shared)(shared.hostname, shared.gpu_id, shared.ib_device or None)
    old = shared.engine
    manager.deregister_buffer_to_engine()
    shared.engine, shared.session_id = fresh.engine, fresh.session_id
    fresh.engine = None
    del old
    manager.register_buffer_to_engine()
    manager.connection_pool.clear()
    for receiver in receivers:
        receiver.session_id = shared.session_id
        if getattr(receiver, "bootstrap_infos", None):
            receiver._register_kv_args()
    return old_session


def has_ended(session: str) -> bool:
    """Is it proven that nobody takes writes for this session any more? A refused connection alone proves it."""
    host, _, port = session.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_S):
            return False
    except ConnectionRefusedError:
        return True
    except OSError:  # too many open files, no route, no answer in time: that says nothing of who listens there
        return False
