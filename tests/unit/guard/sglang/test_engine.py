"""What the guard calls in SGLang: sending on its connections, with SGLang's own kind of socket."""

import threading
from types import SimpleNamespace

import zmq

from kvfence.guard.sglang.engine import SGLang

ADDRESS = "tcp://127.0.0.1:9"


def test_a_connection_that_takes_nothing_is_not_waited_for() -> None:
    """Nobody has ever listened there: as much as ZeroMQ keeps is kept, and then messages are dropped at once."""
    context = zmq.Context()
    socket = context.socket(zmq.PUSH)
    socket.setsockopt(zmq.SNDHWM, 1)
    socket.setsockopt(zmq.SNDTIMEO, 30_000)
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(ADDRESS)
    locks = {ADDRESS: threading.Lock()}
    manager = SimpleNamespace(_connect=lambda _address, is_ipv6: socket, _socket_send_locks=locks)
    sent = [SGLang().send_to(manager, ADDRESS, [b"word"]) for _ in range(4)]
    assert not sent[-1]
    with locks[ADDRESS]:
        assert not SGLang().send_to(manager, ADDRESS, [b"word"])
    socket.close()
    assert not SGLang().send_to(manager, ADDRESS, [b"word"])
    assert not locks[ADDRESS].locked()
    context.term()
