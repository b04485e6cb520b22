"""Throughput and the engine's heartbeat, from `/v1/loads` or, where that is missing, from the log."""

import math
from dataclasses import dataclass
from typing import Any, Final

from kimi_agent.engine.loglines import LogLine, batch_fields
from kimi_agent.model.events import ThroughputSampled

LOADS_PATH: Final = "/v1/loads?include=core"
LOG_FRESH: Final = 15.0
"""Seconds for which a batch line in the log still tells the present rate."""
_GENERATED: Final = 5
"""Place of the generated tokens in `decode_moments`."""


@dataclass(frozen=True, slots=True)
class Loads:
    """`/v1/loads` summed over the data-parallel ranks; `None` where no rank gives the value."""

    running: int | None
    waiting: int | None
    used: int | None
    capacity: int | None
    prefill_total: int | None
    """Prompt tokens computed since the start, those from the prefix cache left out."""
    decode_total: int | None
    """Tokens generated since the start."""
    oldest: float | None
    """Unix seconds at which the least recent scheduler published: the engine's heartbeat."""


def parse_loads(answer: Any) -> Loads:
    """Read an answer of `/v1/loads`; what it does not hold is `None`, whatever its shape."""
    ranks = answer.get("loads") if isinstance(answer, dict) else None
    loads = [rank for rank in ranks if isinstance(rank, dict)] if isinstance(ranks, list) else []
    stamps = [stamp for load in loads if (stamp := _number(load.get("timestamp")))]
    return Loads(
        running=_sum([_number(load.get("num_running_reqs")) for load in loads]),
        waiting=_sum([_number(load.get("num_waiting_reqs")) for load in loads]),
        used=_sum([_number(load.get("num_used_tokens")) for load in loads]),
        capacity=_sum([_number(load.get("max_total_num_tokens")) for load in loads]),
        prefill_total=_sum([_number(load.get("total_prefill_uncached_tokens")) for load in loads]),
        decode_total=_sum([_generated(load.get("decode_moments")) for load in loads]),
        oldest=min(stamps) if stamps else None,
    )


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return value


def _generated(moments: Any) -> float | None:
    return _number(moments[_GENERATED]) if isinstance(moments, list) and len(moments) > _GENERATED else None


def _sum(values: list[float | None]) -> int | None:
    seen = [value for value in values if value is not None]
    return int(sum(seen)) if seen else None


class ThroughputMeter:
    """Rates of one run as deltas of its counters between two polls."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._loads: Loads | None = None
        self._time = 0.0
        self._batches: dict[str, tuple[float, dict[str, str]]] = {}

    def feed(self, line: LogLine, now: float) -> None:
        """Remember a Prefill or Decode line, for servers without `/v1/loads`."""
        fields = batch_fields(line.message) if line.kind == "batch" else {}
        if fields:
            self._batches[fields["batch"]] = (now, fields)

    def update(self, loads: Loads | None, now: float, why: str = "no answer from /v1/loads") -> ThroughputSampled:
        """One sample at `now` (Unix seconds).

        A rate whose start or end is missing is `None`, and so is one over a counter that went back: a restart.
        Without `loads` the log's last batch lines are used while fresh, else `why` is the source.
        """
        before, since = self._loads, now - self._time
        self._loads, self._time = loads, now
        if loads is None:
            return self._from_log(now, why)
        return ThroughputSampled(
            run=self._run,
            prefill_rate=_rate(before.prefill_total if before else None, loads.prefill_total, since),
            decode_rate=_rate(before.decode_total if before else None, loads.decode_total, since),
            running=loads.running,
            waiting=loads.waiting,
            tokens_used=loads.used,
            token_capacity=loads.capacity,
            engine_age=round(max(now - loads.oldest, 0.0), 3) if loads.oldest is not None else None,
            source="loads",
        )

    def _from_log(self, now: float, why: str) -> ThroughputSampled:
        fresh = {batch: fields for batch, (seen, fields) in self._batches.items() if now - seen <= LOG_FRESH}
        prefill, decode = fresh.get("prefill", {}), fresh.get("decode", {})
        latest = decode or prefill
        return ThroughputSampled(
            run=self._run,
            prefill_rate=_text_number(prefill.get("input throughput (token/s)")),
            decode_rate=_text_number(decode.get("gen throughput (token/s)")),
            running=_whole(latest.get("#running-req")),
            waiting=_whole(latest.get("#queue-req")),
            tokens_used=_whole(decode.get("#token")),
            token_capacity=None,
            engine_age=None,
            source="log" if fresh else why,
        )


def _rate(before: int | None, after: int | None, since: float) -> float | None:
    if before is None or after is None or after < before or since <= 0:
        return None
    return (after - before) / since


def _text_number(text: str | None) -> float | None:
    try:
        number = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _whole(text: str | None) -> int | None:
    number = _text_number(text)
    return int(number) if number is not None else None
