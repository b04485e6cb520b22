"""The protocol between a client and the agent.

Lines from the agent: first the greeting `{"hello": {...}}`, then responses `{"id": n, "result": ...}` or
`{"id": n, "error": {"slug", "message", "hint", "exit"}}`, and, once subscribed, events (they have a `seq`).
Lines from a client: requests `{"id": n, "method": m, "params": {...}}`. A request whose `params` hold the same
`command` id as an earlier one is answered with the first one's result and does nothing again.

method         params                          result
subscribe      epoch: str|null, after: int,    {"epoch", "first", "last"}; then every event with seq > after. With
               snapshot: bool                  snapshot, where after is 0 or of another epoch, the first event is the
                                               state so far and the log's end, and only later ones follow
ping                                           {}
status                                         the same object as `kimi-agent status --json`
preflight      profile: dict                   what `preflight --json` prints
launch         profile: dict, force: bool      {"run"}; force starts it in spite of what ports and files show
stop                                           {"run", "left": [...]}; ends a bisection too
bisect         profile: dict|null, only,       {"bisect", "factors": [...]}; without a profile, of the run that hung or
               limit, first, resume            failed last; the table comes as events
bisect_stop                                    {"bisect", "run", "left": [...]}
dump_start     name: str|null, resume: bool    {"dump", "directory", "boundaries"}; resume goes on with that dump
dump_stop                                      {"dump", "rows", "samples", "shards"}
prove                                          {"ok", "modes": [{"mode","steps","computed","captured","verdict","why"}]}
bundle         run: str|null, hosts: [str]     {"bundle", "run", "size", "removed": {kind: count}, "files"}
bundle_read    bundle: str, offset: int        {"data": base64 of at most 512 KiB, "size": bytes of the whole}
feed_start     dataset, dump: str,             as `feed`; the dataset and the template, where one is given, are files
               regenerate, max_new_tokens,     of the host
               chat_template: str
feed                                           {"state", "rows", "forecast", "progress", "summary", "missing", "error"}:
                                               the lines of `kimi-agent feed --json`, the last of each kind
feed_stop                                      as `feed`; what is in flight comes to its end
dumps                                          [{"dump","directory","samples","rows","shards","bytes","time"}]
shards         dump: str, first, count,        {"total", "matched", "shards": [...], …}, a page out of the dump's
               sort, reverse, search           index; sort is order, rows or worst
samples        as shards, and shard            {"total", "matched", "samples": [...], …}; sort may be missing too, shard
                                               names the only one whose samples are wanted
sample         dump, shard: str, place: int,   {"read", "rows", "layers", "heat", "norms", "values", …}: what was read
               layer: str|null                 of a sample so far; it is read on while this is asked for
tokens         dump, shard, place, first,      {"layers", "tokens": [{"id", "text", "position", "norm", "mark", "why"}]}
               count
next_bad       dump, shard, place, token,      {"token": int|null, "why", "read", "rows"}: the next marked token, or
               step: 1|-1                      the one before
bad_sample     dump, number: int, step         {"sample": as in samples, or null, "at": int, "done": bool}; not done:
                                               ask again with number = at
compare        dump, shard, place, other:      {"first_different", "layers": {…}, "nearest", "same", …}: two samples
               {dump, shard, place}
compare_dumps  dump, other: str                {"state", "matched", "layers", …}; goes on while this is asked for
boundary       dump, shard, place              {"running": seconds}, and once it is known what `shards match --json`
                                               prints; the model is run while this is asked for
"""

from dataclasses import dataclass
from typing import Any, Final

from kimi_agent.errors import Exit, KimiError
from kimi_agent.text import clean
from kimi_agent.wire.codec import WireError, encode

PROTOCOL: Final = 1
"""Clients and agents with another number do not talk to each other."""

READ_ONLY: Final = frozenset({
    "subscribe", "ping", "status", "preflight", "dumps", "shards", "samples", "sample", "tokens", "next_bad",
    "bad_sample", "compare", "compare_dumps", "boundary", "feed",
})  # fmt: skip
"""The methods that a read-only connection may call."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The agent's greeting."""

    protocol: int
    version: str
    epoch: str
    """Identity of the journal; sequence numbers count within it."""
    first: int
    last: int
    host: str
    pid: int
    build: str
    """Content hash of the agent's code, to tell an older agent from this one."""
    begun: int = 0
    """Last event when this agent opened the journal: an earlier agent may have given the numbers above to others."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a client."""

    id: int
    method: str
    params: dict[str, Any]


def parse_request(message: dict[str, Any]) -> Request:
    """A request from a decoded line.

    Raises:
        WireError: `id`, `method` or `params` is missing or of the wrong type.
    """
    ident, method, params = message.get("id"), message.get("method"), message.get("params", {})
    if type(ident) is not int or not isinstance(method, str) or not isinstance(params, dict):
        raise WireError("a request needs an integer id, a method name and an object of params")
    return Request(ident, method, params)


def result_line(ident: int, result: object) -> bytes:
    """The response to a request that succeeded."""
    return encode({"id": ident, "result": result})


def error_line(ident: int, error: KimiError) -> bytes:
    """The response to a request that failed."""
    told = {"slug": error.slug, "message": error.message, "hint": error.hint, "exit": int(error.exit)}
    return encode({"id": ident, "error": told})


def refusal(error: Any) -> KimiError:
    """The error of a response as the error it was; what the peer says is cleaned for a terminal."""
    fields = error if isinstance(error, dict) else {"message": str(error)}
    slug, message, hint = (clean(str(fields.get(key) or "")) for key in ("slug", "message", "hint"))
    refused = KimiError(message or "the agent refused without a reason", hint, slug=slug or KimiError.slug)
    code = fields.get("exit")
    refused.exit = Exit(code) if isinstance(code, int) and code in set(Exit) else Exit.FAILED
    return refused
