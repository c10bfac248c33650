"""Whether spans are recorded: by the setting, or by OpenTelemetry's own environment variables.

Where they are not, nothing of OpenTelemetry is imported. Not for: the spans (``otel.py``).
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from structlog.typing import FilteringBoundLogger

from kvfence.core.errors import SettingsError

if TYPE_CHECKING:
    from kvfence.gateway.otel import OtelTracing

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
INSTALL = "pip install '.[otel]'"


def wants_traces(mode: str, environ: Mapping[str, str]) -> bool:
    """Say whether spans are to be recorded.

    Raises:
        SettingsError: the environment asks for an exporter or a protocol that is not here.
    """
    exporter = environ.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower()
    if mode == "off" or exporter == "none" or environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if mode == "auto" and not any(environ.get(name) for name in ENDPOINTS):
        return False
    problems = []
    if exporter != "otlp":
        problems.append(f"OTEL_TRACES_EXPORTER={exporter}: only otlp and none are known here")
    names = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    protocol = next((environ[name] for name in names if environ.get(name)), "http/protobuf")
    if protocol != "http/protobuf":
        problems.append(f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol}: only http/protobuf is spoken here (port 4318)")
    if problems:
        raise SettingsError(problems)
    return True


def open_tracing(
    mode: str, model: str, log: FilteringBoundLogger, environ: Mapping[str, str] = os.environ
) -> "OtelTracing | None":
    """Open what records spans, or give None.

    Raises:
        SettingsError: see ``wants_traces``; or spans are asked for and the extra is not installed.
    """
    if not wants_traces(mode, environ):
        return None
    try:
        from kvfence.gateway.otel import OtelTracing
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "opentelemetry":
            raise
        raise SettingsError([f"spans are asked for (--otel or OTEL_*): {INSTALL}, or say --otel off"]) from None
    return OtelTracing(model, log)
