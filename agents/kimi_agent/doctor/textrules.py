"""Rules for a log alone, asked before the others: what only its text can show, and where no host can be looked at."""

from collections.abc import Callable
from typing import Final

from kimi_agent.counts import many
from kimi_agent.doctor.evidence import Evidence
from kimi_agent.doctor.rules.common import past
from kimi_agent.engine import hints
from kimi_agent.engine.hints import Mention
from kimi_agent.engine.phases import PhaseTracker
from kimi_agent.model.events import Verdict
from kimi_agent.model.phases import AFTER_LOAD, GRAPHS, IMPORT, JOIN, KV_CACHE, LOAD, ORDER, PORT, WARM_UP

TextRule = Callable[[Evidence, PhaseTracker], Verdict | None]

CAN_BE: Final[dict[str, tuple[str, str]]] = {
    IMPORT: ("imports, the model's configuration, a hub that does not answer",
             "the weights, a kernel, the interconnect"),
    JOIN: ("the rendezvous address, the network card, NCCL's first all-reduce, access between GPUs",
           "the weights, an attention kernel, CUDA graphs"),
    LOAD: ("slow storage, page faults, a rank that died", "the interconnect, an attention kernel, CUDA graphs"),
    AFTER_LOAD: ("weights repacked, kernels compiled or a lock on their cache, a dead rank that the barrier waits for",
                 "an attention kernel, a forward pass, CUDA graphs"),
    KV_CACHE: ("the ranks agreeing on memory, a dead rank", "an attention kernel, a forward pass, storage"),
    GRAPHS: ("the attention's set-up, tuning that differs between ranks, the first forward pass and all-reduce",
             "storage, the rendezvous"),
    PORT: ("another rank's report, the tokenizer or chat template", "a GPU, storage, the interconnect"),
    WARM_UP: ("the first request's forward pass, an image's for Kimi-K2.5; a proxy", "storage, the rendezvous"),
}  # fmt: skip
"""Where a start falls silent: what runs there, and what has not begun or is long over."""
_SHOWN: Final = 300
"""Characters of a line that is quoted as evidence."""


def quote(line: str) -> str:
    """A line of the log as evidence."""
    return f"log: {line[:_SHOWN]}"


def text_verdict(evidence: Evidence, tracker: PhaseTracker) -> Verdict | None:
    """The first of these rules that knows something."""
    for rule in _RULES:
        verdict = rule(evidence, tracker)
        if verdict is not None:
            return verdict
    return None


def with_facts(verdict: Verdict, evidence: Evidence, tracker: PhaseTracker) -> Verdict:
    """An `unknown` with what the log does say: an operator has nothing else to go by."""
    if verdict.kind != "unknown":
        return verdict
    can, cannot = CAN_BE.get(evidence.phase or "", ("", ""))
    lines = [f"log: in {evidence.phase!r} it can be: {can}"] if can and not tracker.failures.failed else []
    if tracker.last_message:
        lines.append(quote(f"last line: {tracker.last_message}"))
    seen = (tracker.hints.mentions.get(matter) for matter in (hints.COMPILE, hints.LOCK, hints.BROADCAST))
    lines += [
        quote(f"{mention.count} × {mention.line}" if mention.count > 1 else mention.line)
        for mention in seen
        if mention is not None and _since_progress(mention, tracker)
    ]
    if tracker.unmatched:
        words = f"{many(tracker.unmatched, 'line')}, {tracker.unmatched_seconds:.0f} s"
        lines.append(f"log: {words} read like phases that this version does not know")
    return Verdict(
        verdict.kind, verdict.summary, verdict.rank, verdict.confidence,
        (*verdict.evidence, *lines), (*verdict.ruled_out, *([cannot] if lines and cannot else [])), verdict.advice,
    )  # fmt: skip


def _foreign(evidence: Evidence, tracker: PhaseTracker) -> Verdict | None:
    """Nothing in the text is a server's."""
    if tracker.ranks or tracker.failures.failed or tracker.failures.raised or tracker.failures.port_line:
        return None
    if tracker.named or not tracker.lines:
        return None
    lines = (f"log: {many(tracker.lines, 'line')}, none of which names a phase, a rank or a failure of SGLang or vLLM",)
    advice = ("give the file into which the server's stdout and stderr go",)
    return Verdict("unknown", "this does not look like a log of SGLang or vLLM", None, 0.3, lines, (), advice)


def _plugin(evidence: Evidence, tracker: PhaseTracker) -> Verdict | None:
    mention = tracker.hints.mentions.get(hints.PLUGIN)
    if mention is None or tracker.failures.failed is not None:
        return None
    summary = "the capture plugin was not loaded: the server may work, but captures nothing"
    advice = ("read the traceback below that line in the log", "check the plugin against this SGLang's version")
    return Verdict("plugin_missing", summary, mention.rank, 0.9, (quote(mention.line),), (), advice)


def _proxy(evidence: Evidence, tracker: PhaseTracker) -> Verdict | None:
    mention = tracker.hints.mentions.get(hints.PROXY)
    if mention is None or tracker.ready or tracker.failures.warm_up_error is None:
        return None
    lines = ("log: the warm-up request failed", quote(mention.line))
    advice = ("unset http_proxy and https_proxy for the server, or add its host to no_proxy",)
    return Verdict("proxy", "the server asked itself through a proxy, which refused", None, 0.9, lines, (), advice)


def _disk(evidence: Evidence, tracker: PhaseTracker) -> Verdict | None:
    mention = tracker.hints.mentions.get(hints.DISK)
    if mention is None or tracker.failures.failed is None:
        return None
    summary = "a file system failed the server: it is full, stale or gone"
    advice = ("free space, or mount it again; then launch again",)
    return Verdict("storage", summary, mention.rank, 0.9, (quote(mention.line),), (), advice)


def _barrier(evidence: Evidence, tracker: PhaseTracker) -> Verdict | None:
    mention = tracker.hints.mentions.get(hints.BARRIER)
    raised = tracker.first_exception
    if mention is None or (raised is not None and not raised.effect and raised.message not in mention.line):
        return None
    names = [tracker.ranks[index] if index < len(tracker.ranks) else f"rank {index}" for index in tracker.hints.missing]
    behind = names or list(evidence.laggards())
    who = ", ".join(behind) or "a rank that the log does not name"
    lines = (quote(mention.line), past(evidence))
    advice = (f"look for the first error of {who}: the barrier's error on the others is an effect",
              "slow storage on one host gives this too: the limit of 480 s is SGLang's own")  # fmt: skip
    summary = f"{who} did not reach the barrier in time, and that ended the others"
    return Verdict("straggler", summary, behind[0] if behind else None, 0.8, lines, (), advice)


def _collective(evidence: Evidence, tracker: PhaseTracker) -> Verdict | None:
    mention, raised = tracker.hints.mentions.get(hints.COLLECTIVE), tracker.first_exception
    if mention is None or (raised is not None and not raised.effect):
        return None
    lines = (quote(mention.line), past(evidence))
    advice = ("the rank that is not in the collective is the cause: compare the ranks' last lines and stacks",
              "try NCCL_P2P_DISABLE=1 with --disable-custom-all-reduce to rule the interconnect out")  # fmt: skip
    summary = "a collective operation of the ranks timed out: they waited for each other"
    return Verdict("deadlock", summary, None, 0.7, lines, (), advice)


def _hardware(evidence: Evidence, tracker: PhaseTracker) -> Verdict | None:
    mention = tracker.hints.mentions.get(hints.HARDWARE)
    if mention is None:
        return None
    advice = ("look at the kernel's log and the card", "a card that fell off the bus needs a reboot")
    return Verdict("hardware", "the driver reports a fault of a GPU", None, 0.9, (quote(mention.line),), (), advice)


def _downloading(evidence: Evidence, tracker: PhaseTracker) -> Verdict | None:
    mention = _under_way(evidence, tracker, hints.DOWNLOAD)
    if mention is None or ORDER[evidence.phase or LOAD] > ORDER[LOAD]:
        return None
    lines = (quote(mention.line), past(evidence))
    advice = ("wait, or download the model before the launch and set HF_HUB_OFFLINE=1",)
    return Verdict("downloading", "the model is being downloaded: slow, not hung", mention.rank, 0.9, lines, (), advice)


def _lock_wait(evidence: Evidence, tracker: PhaseTracker) -> Verdict | None:
    mention = tracker.hints.mentions.get(hints.LOCK)
    if mention is None or _settled(tracker) or not _since_progress(mention, tracker):
        return None
    lines = (quote(mention.line), past(evidence))
    advice = ("look who holds that lock; one left by a dead process may be removed",)
    return Verdict("lock_wait", "a process waits for a file lock", mention.rank, 0.8, lines, (), advice)


def _compiling(evidence: Evidence, tracker: PhaseTracker) -> Verdict | None:
    mention = _under_way(evidence, tracker, hints.COMPILE)
    if mention is None:
        return None
    lines = (quote(mention.line), past(evidence))
    advice = ("wait: a first start compiles for minutes and the result is cached",)
    return Verdict("compiling", "kernels are being compiled: slow, not hung", mention.rank, 0.7, lines, (), advice)


def _settled(tracker: PhaseTracker) -> bool:
    return tracker.ready or tracker.stopping


def _since_progress(mention: Mention, tracker: PhaseTracker) -> bool:
    """Whether a mention is not older than the last phase or bar."""
    if mention.time is None or tracker.progress_time is None:
        return True
    return mention.time >= tracker.progress_time


def _under_way(evidence: Evidence, tracker: PhaseTracker, matter: str) -> Mention | None:
    """The last mention of something slow, if nothing failed and the log did not fall silent after it."""
    mention = tracker.hints.mentions.get(matter)
    if mention is None or _settled(tracker) or tracker.failures.failed or not _since_progress(mention, tracker):
        return None
    return None if mention.time is not None and evidence.now - mention.time > evidence.limits.silent else mention


_RULES: Final[tuple[TextRule, ...]] = (
    _foreign, _proxy, _disk, _barrier, _collective, _hardware, _plugin, _downloading, _lock_wait, _compiling,
)  # fmt: skip
