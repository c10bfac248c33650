"""A worker process from its first order to its end: load, take the pool, serve until the lifeline ends.

Not for: what a worker does (``worker.py``).
"""

import asyncio
import ctypes
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from kvfence.core.errors import CapacityError, KvfenceError
from kvfence.core.settings import Settings
from kvfence.kv.storage import MemoryFile, available_bytes, open_shared, pool_bytes
from kvfence.models.checkpoint import read_facts
from kvfence.models.executor import Executor
from kvfence.runtime.lifeline import Begin, Broken, Lifeline, Loaded, Order, Start, describe
from kvfence.runtime.sessions import spare_records, uses_mooncake
from kvfence.runtime.worker import Worker

LIFELINE_ENDED = (EOFError, BrokenPipeError, ConnectionResetError)

Build = Callable[[Begin, "Lifeline[Order]", Executor, MemoryFile], Worker[Any]]


class Model(Struct):
    """A loaded model and its family's name."""

    executor: Executor
    family: str


Load = Callable[[Begin], Model]


def load_model(begin: Begin) -> Model:
    """Load the checkpoint that the orders name; torch and transformers are imported once it has been looked at."""
    settings, path = begin.settings, Path(begin.model_path)
    family = read_facts(path).family
    from kvfence.models.transformer import ExecutorSpec, load_executor

    model = settings.model
    spec = ExecutorSpec(settings.pool.page_size, model.dtype, model.device, model.threads, model.kernels)
    return Model(load_executor(path, spec), family)


def run_worker(build: Build, load: Load = load_model) -> None:
    """Be a worker process: ``python -m kvfence.runtime.ROLE_worker LIFELINE_FD``."""
    die_with_parent()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core would hold tenants' pages
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the supervisor ends us in order
    sock = socket.socket(fileno=int(sys.argv[1]))
    status = 0
    try:
        asyncio.run(_live(build, load, sock))
    except LIFELINE_ENDED:
        pass
    except SystemExit as end:
        status = int(end.code or 0)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # taking torch down in order takes seconds, and nothing of this process is to be kept


def die_with_parent() -> None:
    """Ask the kernel to kill this process, even a stopped one, when its parent dies (Linux only)."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


async def _live(build: Build, load: Load, sock: socket.socket) -> None:
    lifeline: Lifeline[Order] = Lifeline(sock, Order)  # type: ignore[arg-type]
    try:
        begin, _ = await lifeline.receive()
        if not isinstance(begin, Begin):
            raise EOFError("the first order is Begin")
        worker = _load(build, load(begin), begin, lifeline)
        await _serve(worker)
    except (KvfenceError, OSError) as error:
        lifeline.send(Broken(describe(error)))
        raise SystemExit(1) from None
    except BaseExceptionGroup as group:
        cause = _first(group)
        traceback.print_list(traceback.extract_tb(cause.__traceback__))
        lifeline.send(Broken(describe(cause)))
        raise SystemExit(1) from None
    finally:
        lifeline.close()


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _load(build: Build, model: Model, begin: Begin, lifeline: "Lifeline[Order]") -> Worker[Any]:
    executor = model.executor
    record_bytes = executor.layout.record_bytes
    if begin.pool_pages == 0:
        begin = replace(begin, pool_pages=_pages_left(begin.settings, record_bytes))
    memory = open_shared(pool_bytes(executor.layout, begin.pool_pages + spare_records(begin.settings)))
    worker = build(begin, lifeline, executor, memory)
    loaded = Loaded(
        layout=executor.layout.fingerprint,
        page_size=executor.layout.page_size,
        record_bytes=record_bytes,
        num_pages=begin.pool_pages,
        context_tokens=executor.context_tokens,
        weight_bytes=executor.weight_bytes,
        family=model.family,
    )
    lends = begin.role == "decode" and not uses_mooncake(begin.settings)
    lifeline.send(loaded, memory.fd if lends else None)
    return worker


def _pages_left(settings: Settings, record_bytes: int) -> int:
    """Give the pages that this worker's part of the memory left after the weights holds; all share one host."""
    left, memory_fraction = available_bytes(), settings.pool.memory_fraction
    num_workers = settings.workers.prefill + settings.workers.decode
    num_pages = int(left * memory_fraction / num_workers) // record_bytes
    if num_pages < 1:
        raise CapacityError(
            f"memory fraction {memory_fraction} of {left >> 20} MiB left, divided by {num_workers} workers, holds no "
            f"page of {record_bytes} bytes: raise --memory-fraction, start fewer workers or give --pool-tokens"
        )
    return num_pages


async def _serve(worker: Worker[Any]) -> None:
    """Start at the supervisor's word and run until the lifeline ends or a task fails."""
    order, _ = await worker.lifeline.receive()
    if not isinstance(order, Start):
        raise EOFError("the second order is Start")
    try:
        async with asyncio.TaskGroup() as tasks:
            worker.tasks = tasks
            worker.start(order.capacity)
            for part in (worker.obey(), worker.listen(), worker.beat(), worker.work()):
                tasks.create_task(part)
    except* LIFELINE_ENDED:
        pass
    finally:
        worker.recorder.close()
        worker.control.close()
