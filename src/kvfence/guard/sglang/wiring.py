"""The guard of one scheduler process: which role it has, what both roles share, and which hook stands at which point.

The hooks themselves are named after their points (``points.py``): ``at_prefill.py``, ``at_decode.py``, ``at_pool.py``.
They translate between SGLang's calls and the guard's memory; no decision is taken there. In ``observe`` nothing that
the engine does is changed.
"""

from collections.abc import Callable, Sequence
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry

from kvfence.core.errors import SettingsError
from kvfence.core.ids import Incarnation
from kvfence.guard.messages import Message, seal, unseal
from kvfence.guard.settings import GuardSettings
from kvfence.guard.sglang.at_decode import AtDecode
from kvfence.guard.sglang.at_pool import AtPool
from kvfence.guard.sglang.at_prefill import AtPrefill
from kvfence.guard.sglang.decode import DecodeState
from kvfence.guard.sglang.engine import Engine, SGLang
from kvfence.guard.sglang.memory import PageMemory
from kvfence.guard.sglang.points import unwrapped
from kvfence.guard.sglang.prefill import PrefillState
from kvfence.guard.sglang.sockets import MAGIC, Frames, ReadSocket
from kvfence.guard.sglang.tally import Tally
from kvfence.guard.watcher import Engine as Watched
from kvfence.guard.watcher import Watcher
from kvfence.protocol.admission import Capacity
from kvfence.protocol.guards import Place

MANAGER = "MooncakeKVManager"
"""What moves pages in a way that the guard follows; others share its base class, and with it half of the hooks."""


class Wiring:
    """One process's guard; ``hook`` gives what stands at each point, and does nothing before the role is known.

    ``registry``: where SGLang's own metrics are.
    """

    def __init__(
        self, settings: GuardSettings, engine: Engine | None = None, registry: CollectorRegistry = REGISTRY
    ) -> None:
        self.settings, self._registry = settings, registry
        self.engine: Engine = engine if engine is not None else SGLang()
        self.manager: Any = None
        self.at_prefill = AtPrefill(self)
        self.at_decode = AtDecode(self)
        self.at_pool = AtPool(self)
        self._asked: Any = None
        self._hooked: Sequence[str] = ()
        self._tally: Tally | None = None
        self._watcher: Watcher | None = None

    def hook(self, key: str) -> Callable[..., Any]:
        """Give the hook of a point."""
        name = key.replace("-", "_")
        holder = next(each for each in (self, self.at_prefill, self.at_decode, self.at_pool) if hasattr(each, name))
        hook: Callable[..., Any] = getattr(holder, name)
        return hook

    def expect_hooks(self, names: Sequence[str]) -> None:
        """Note what SGLang was told to wrap, so that what it did not wrap is found once its modules are there."""
        self._hooked = tuple(names)

    def manager_made(self, _result: Any, manager: Any, *given: Any, **_named: Any) -> None:
        """Take this process's role; its messages are read through the guard from now on."""
        missing = unwrapped(self._hooked)
        if missing:
            raise SettingsError([f"SGLang could not put in the guard's hook at {name}" for name in missing])
        backend = self.engine.manager(manager)
        if backend != MANAGER:
            raise SettingsError([f"transfers by {backend} are not covered: --disaggregation-transfer-backend mooncake"])
        role, server = str(given[1].value), given[2]
        if server.device != "cpu":
            raise SettingsError([f"no digest of pages on {server.device} yet: the guard runs on cpu alone"])
        memory = PageMemory(manager.kv_args)
        limits = (len(memory.buffers[0]) * memory.page_size, int(server.context_length or 0), str(self.settings.mode))
        self.manager = manager
        self._tally = Tally(self.settings, role, self._registry)
        if role == "prefill":
            prefill = PrefillState(memory, *limits)
            self._watcher = self._watch("prefill", prefill.incarnation, memory, limits[1])
            self.at_prefill.begin(prefill)
        else:
            decode = DecodeState(memory, *limits)
            self._watcher = self._watch("decode", decode.incarnation, memory, limits[1])
            self.at_decode.begin(decode, memory.num_pages)
        manager.server_socket = ReadSocket(manager.server_socket, self._read)

    def request_read(self, _scheduler: Any, asked: Any, *_given: Any, **_named: Any) -> None:
        """Note which question the engine makes a request of: one that it refuses at once may lack its room."""
        self._asked = asked

    def room_of(self, req: Any) -> int | None:
        """Give the room that a request was asked in; None where there is none."""
        room = req.bootstrap_room
        if room is None and self._asked is not None and self._asked.rid == req.rid:
            room = self._asked.bootstrap_room
        return None if room is None else int(room)

    def _watch(self, role: Place, life: Incarnation, memory: PageMemory, context_tokens: int) -> Watcher:
        """Begin this process's trace; prefill does not tell when its own pages go back."""
        pages = (memory.num_pages, 0) if role == "prefill" else (0, memory.num_pages)
        capacity = Capacity(memory.page_size, context_tokens, *pages)
        unseen = ("release",) if role == "prefill" else ()
        engine = Watched(self.engine.name(), role, life, memory.layout, capacity, unseen)
        return Watcher(engine, enforced=self.settings.enforces, folder=self.settings.trace)

    @property
    def watcher(self) -> Watcher:
        """Give the trace; there is none before the role is known."""
        if self._watcher is None:
            raise SettingsError(["the guard was asked before SGLang made its KV manager"])
        return self._watcher

    @property
    def has_role(self) -> bool:
        """Is this process a prefill or a decode rank?"""
        return self._tally is not None

    @property
    def tally(self) -> Tally:
        """Give the counts; there are none before the role is known."""
        if self._tally is None:
            raise SettingsError(["the guard was asked before SGLang made its KV manager"])
        return self._tally

    def send(self, endpoint: tuple[str, int], message: Message) -> bool:
        """Send a message where the engine sends its own; False where it cannot be taken at once."""
        host, port = endpoint
        address = f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
        return self.engine.send_to(self.manager, address, self.frames(message))

    def frames(self, message: Message) -> Frames:
        """Give a message as it travels."""
        return [MAGIC, *seal(self.settings.key, message)]

    def fail(self, room: int, reason: str) -> None:
        """Let the engine end a room whose pages will not be sent, or not be taken."""
        self.manager.record_failure(room, reason)
        self.manager.update_status(room, self.engine.poll("Failed"))

    def _read(self, mac: bytes, body: bytes, frames: Frames) -> None:
        message = unseal(self.settings.key, mac, body)
        role = self.at_prefill if self.at_prefill.state is not None else self.at_decode
        if message is None or not role.read(message, frames):
            self.tally.refuse(0, "peer-is-current", "a message that is not by a holder of the key", enforced=True)
