"""The guard of one scheduler process: which role it has, what both roles share, and which hook stands at which point.

The hooks themselves are named after their points (``points.py``): ``at_prefill.py``, ``at_decode.py``, ``at_pool.py``.
They translate between SGLang's calls and the guard's memory; no decision is taken there. In ``observe`` nothing that
the engine does is changed.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry

from kvfence.core.errors import SettingsError
from kvfence.core.ids import Incarnation
from kvfence.guard.handoff import Limits, compare_limits, fits_context
from kvfence.guard.messages import Hello, Message, Welcome, seal, unseal
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


MET_MAX = 4096
"""Lives of peers whose settings have been compared; one that was forgotten is compared again."""


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
        self._met: OrderedDict[Incarnation, None] = OrderedDict()
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
        memory = PageMemory(manager.kv_args, str(server.device))
        context_tokens = int(server.context_length or 0)
        limits = Limits(memory.num_pages * memory.page_size, context_tokens)
        self.manager = manager
        self._tally = Tally(self.settings, role, self._registry)
        if role == "prefill":
            prefill = PrefillState(memory, limits, str(self.settings.mode))
            self._watcher = self._watch("prefill", prefill.incarnation, memory, context_tokens)
            self.at_prefill.begin(prefill)
        else:
            decode = DecodeState(memory, limits, str(self.settings.mode))
            self._watcher = self._watch("decode", decode.incarnation, memory, context_tokens)
            self.at_decode.begin(decode, memory.num_pages)
        manager.server_socket = ReadSocket(manager.server_socket, self._read)

    def sized(self, scheduler: Any) -> None:
        """The engine knows by now how long a prompt may be: its pool is held against that, and peers are told."""
        state = self.at_prefill.state if self.at_prefill.state is not None else self.at_decode.state
        if state is None:
            return
        pool_tokens = getattr(scheduler, "max_total_num_tokens", None) or state.limits.pool_tokens
        context_tokens = getattr(getattr(scheduler, "model_config", None), "context_len", None)
        state.limits = Limits(int(pool_tokens), int(context_tokens or state.limits.context_tokens))
        short = fits_context(state.limits)
        if short:
            self.tally.warn("fits", short)

    def compare(self, own: Hello | Welcome, peer: Hello | Welcome) -> None:
        """Say once for each life of a peer where its settings are not ours."""
        if peer.sender in self._met:
            return
        self._met[peer.sender] = None
        while len(self._met) > MET_MAX:
            self._met.popitem(last=False)
        for name in ("version", "mode", "layout"):
            if getattr(peer, name) != getattr(own, name):
                self.tally.warn("layout-agrees", f"the pair's {name} differ")
        mine, theirs = (Limits(each.pool_tokens, each.context_tokens) for each in (own, peer))
        for words in compare_limits(mine, theirs):
            self.tally.warn("fits", words)

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
            self.tally.stranger()
