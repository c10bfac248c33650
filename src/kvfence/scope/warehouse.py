"""Request logs in a warehouse: the same expressions run there, by ``--backend URL``; only what matters comes here.

A URL is one that ibis knows (``bigquery://...``, ``postgres://...``, ``sqlite://...``, ``duckdb://...``); its driver is
installed apart (``pip install 'ibis-framework[bigquery]'``). LOGS are names of tables then.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import ibis

from kvfence.core.errors import EvidenceError, SettingsError
from kvfence.scope.columns import pick
from kvfence.scope.ingest import Sources, fields_of_table, typed_table, with_naive_times
from kvfence.scope.relation import Reading
from kvfence.scope.staging import seen, with_picks, with_unseen
from kvfence.scope.values import Reader


def open_tables(url: str, names: Sequence[str], maps: Mapping[str, tuple[str, ...]]) -> Sources:
    """Open tables of a warehouse as sources.

    Raises:
        SettingsError: ibis knows no such URL, or its driver is not installed.
        EvidenceError: a table cannot be read.
    """
    backend = _connect(url)
    can_try = backend.has_operation(ibis.expr.operations.TryCast)
    knows_nan = backend.has_operation(ibis.expr.operations.IsNan)
    reader = Reader(can_try=can_try, is_duckdb=backend.name == "duckdb", knows_nan=knows_nan)
    tables, readings = [], {}
    for name in names:
        try:
            raw = backend.table(name)
        except Exception as error:
            raise EvidenceError(f"--backend: table {name} cannot be read ({type(error).__name__})") from error
        picked = pick(fields_of_table(raw), maps)
        picks = seen(picked)
        reading = with_unseen(with_picks(Reading(name, f"table of {backend.name}"), picks), picked)
        readings[name] = with_naive_times(reading, raw, picks)
        tables.append(typed_table(raw, picks, reader, (ibis.literal(name), ibis.null("int64"))))
    return Sources(ibis.union(*tables) if len(tables) > 1 else tables[0], readings)


def _connect(url: str) -> Any:
    scheme = url.partition(":")[0]
    try:
        return ibis.connect(url)
    except ModuleNotFoundError as error:
        raise SettingsError(
            [f"--backend {scheme}: pip install 'ibis-framework[{scheme}]' (no module {error.name})"]
        ) from error
    except Exception as error:
        raise SettingsError([f"--backend {scheme}: no connection ({type(error).__name__}); check the URL"]) from error
