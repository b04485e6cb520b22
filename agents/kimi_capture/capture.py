"""The plugin's one object: what a rank knows, and what it does at each hook and at each request of an operator."""

import os
import re
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from kimi_capture import __version__
from kimi_capture.claim import StoreError
from kimi_capture.control import Control, Refused, stacks
from kimi_capture.dump import MIB, Dump, Limits, inside, tokens_of
from kimi_capture.facts import Facts, read_facts, text_model
from kimi_capture.format import PRE_NORM_RMS, Manifest
from kimi_capture.guard import Guard
from kimi_capture.modes import Modes, mode_of, rows_given
from kimi_capture.norm import FinalNorm
from kimi_capture.rows import EMBEDDINGS, MULTIMODAL, Ledger, Piece
from kimi_capture.scribe import Scribe
from kimi_capture.selfcheck import Checker
from kimi_capture.staging import Stager
from kimi_capture.store import Store
from kimi_capture.writer import Finished

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
MAX_DRAIN: Final = 86_400.0


class Capture:
    """State of one scheduler rank. Hooks run on the scheduler's thread, operations on the control threads."""

    def __init__(self, sockets: Path, run: str, root: Path) -> None:
        """Open the control socket in `sockets`: it says that this rank has the plugin. Dumps must lie under `root`."""
        self.guard = Guard()
        self._root = root
        self._run = run
        self._facts: Facts | None = None
        self._lock = threading.Condition()
        self._starting = threading.Lock()
        self._ledger = Ledger()
        self._stager = Stager()
        self._norm = FinalNorm()
        self._checker = Checker(self.guard)
        self._modes = Modes()
        self._dump: Dump | None = None
        self._steps = 0
        self._last_forward: float | None = None
        self._cost = 0.0
        self._cost_steps = 0
        self.guard.on_limit = self._give_up
        operations = {"status": self.status, "start": self.start, "stop": self.stop, "stacks": self.stacks}
        self._control = Control(sockets / f"cap-{os.getpid()}.sock", operations)

    # Hooks

    def on_configured(self, model: Any) -> None:
        """SGLang told the model which layers to capture."""
        self._facts = facts = read_facts(model)
        if facts.writer:
            self._norm.attach(getattr(text_model(model), "norm", None))
            self._checker.attach(model)

    def on_forward(self, output: Any, runner: Any, batch: Any) -> None:
        """A forward step was launched; its outputs are valid on the current stream until the next one."""
        if runner.is_draft_worker:
            return
        began = time.perf_counter()
        self._steps += 1
        self._last_forward = time.time()
        facts = self._facts
        if facts is None or not facts.writer:
            return
        rows = entries(batch) if batch.rids else []
        self._prove(output, batch, rows, facts)
        if not rows:
            return
        with self._lock:
            dump = self._dump
            active = dump is not None and dump.active
            pieces = self._ledger.step(
                rows, dump.refusal() if dump and active else None, dump.writer.rids if dump and active else ()
            )
        held = 0.0
        if dump is not None and active and pieces:
            self._checker.keep(rows, pieces, output.logits_output.next_token_logits)
            held = self._stage(dump, output, batch, pieces)
        elif self._stager.device is None and batch.input_ids is not None:
            self._stager.device = batch.input_ids.device
        self._norm.forget()
        self._cost += time.perf_counter() - began - held
        self._cost_steps += 1

    def on_result(self, batch: Any) -> None:
        """The scheduler took a step's results; some requests may have ended."""
        facts = self._facts
        if facts is None or not facts.writer:
            return
        began = time.perf_counter()
        for request in batch.reqs:
            if request.finished():
                self._end(request)
        self._stager.begin()  # last: what ends may have closed a block
        self._cost += time.perf_counter() - began

    def on_abort(self, request: Any) -> None:
        """The scheduler dropped a request outside of a batch."""
        with self._lock:
            self._ledger.abort(request.rid)
            self._lock.notify_all()

    # Operations

    def status(self, request: dict[str, Any] | None = None) -> dict[str, Any]:
        """What this rank captures and how far it is."""
        return {"status": self._describe() | {"dump": self._dump.status() if self._dump else None}}

    def start(self, request: dict[str, Any]) -> dict[str, Any]:
        """Start a dump: {"dump": name, "directory": absolute path of the dump's own directory}.

        With "resume": true it goes on with the dump that is there; what it has already is not captured again.
        """
        facts = self._facts
        if facts is None:
            raise Refused(
                "not-configured", "this rank captures no layers", "set the aux hidden state flags; see last_error"
            )
        if not facts.writer:
            raise Refused("not-writer", f"{facts.rank} writes no dump", "start the dump on the writer ranks")
        name, directory = request.get("dump"), request.get("directory")
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise Refused("bad-name", f"{name!r} cannot name a dump", "letters, digits, dot, dash and underscore")
        if not isinstance(directory, str) or not Path(directory).is_absolute():
            raise Refused("bad-directory", f"{directory!r} is not an absolute path")
        if not inside(self._root, Path(directory)):
            raise Refused("outside-root", f"{directory} is not under {self._root}", "choose a directory under it")
        resume = request.get("resume", False)
        if not isinstance(resume, bool):
            raise Refused("bad-request", "resume is true or false")
        with self._starting:
            self._open(facts, name, Path(directory).resolve(), resume=resume)
        return {"boundaries": list(facts.boundaries)}

    def stop(self, request: dict[str, Any]) -> dict[str, Any]:
        """Stop the dump: {"drain": seconds that requests in flight get to end}."""
        drain = request.get("drain", 0)
        if isinstance(drain, bool) or not isinstance(drain, int | float) or not 0 <= drain <= MAX_DRAIN:
            raise Refused("bad-request", "drain is a number of seconds from 0")
        if self._dump is None:
            raise Refused("no-dump", "no dump was started")
        with self._starting:
            if self._dump.state != "stopped":
                self._dump.stop(drain)
        return self.status()

    def stacks(self, request: dict[str, Any]) -> dict[str, Any]:
        """The Python stacks of this process."""
        return {"stacks": stacks()}

    def _open(self, facts: Facts, name: str, directory: Path, *, resume: bool) -> None:
        if self._dump is not None and self._dump.state != "stopped":
            if self._dump.active:
                running = f"dump {self._dump.manifest.dump} is {self._dump.state}"
                raise Refused("already-dumping", running, "stop it first")
            self._dump.stop(0)
        limits = Limits.from_environment()
        try:
            self._stager.prepare(limits.arena, len(facts.boundaries), facts.hidden_size, facts.dtype)
        except (OSError, RuntimeError) as error:
            hint = "give KIMI_CAPTURE_WAITING_MIB in [env] less"
            raise Refused("no-memory", f"{limits.arena // MIB} MiB of memory cannot be had: {error}", hint) from error
        try:
            start = partial(Scribe, self._stager.arena)
            store = Store(directory, facts.rank, self._manifest(facts, name), resume=resume, start=start)
        except StoreError as error:
            raise Refused(error.slug, error.message, error.hint) from error
        except OSError as error:
            raise Refused("cannot-write", f"{directory} cannot be written: {error.strerror}") from error
        self.guard.reset()
        if self._stager.problem:
            self.guard.note(self._stager.problem)
        self._checker.reset()
        size = facts.row_bytes() + (4 if store.manifest.pre_norm else 0)
        with self._lock:
            self._cost, self._cost_steps = 0.0, 0
            self._dump = Dump(
                self._ledger,
                self._lock,
                store,
                stager=self._stager,
                row_bytes=size,
                limits=limits,
                guard=self.guard,
                checker=self._checker,
            )

    def _manifest(self, facts: Facts, name: str) -> Manifest:
        manifest, reason = facts.manifest(name, self._run, time.time()), self._norm.reason
        pre_norm = None if reason else "rms"
        return replace(manifest, pre_norm=pre_norm, pre_norm_reason=reason, final_norm=self._norm.facts)

    def _prove(self, output: Any, batch: Any, rows: list[tuple[str, int, int]], facts: Facts) -> None:
        """Count the step by its mode, and say so when the model gave no states in one."""
        computed = sum(length for _, _, length in rows)
        mode = mode_of(batch, rows, graph=output.can_run_graph)
        captured = rows_given(output.logits_output, computed, len(facts.boundaries))
        if self._modes.book(mode, computed, captured):
            what = f"{facts.model_class} gave hidden states for {captured} of {computed} rows"
            self.guard.note(f"capture_patch: {what} in a {mode} step")

    def _stage(self, dump: Dump, output: Any, batch: Any, pieces: list[Piece]) -> float:
        """Take a step's rows; the seconds for which the engine was held back."""
        assert self._facts is not None
        before = dump.writer.held_back
        source = sources(output.logits_output, batch, len(self._facts.boundaries))
        if dump.manifest.pre_norm is not None:
            rows = len(source["last_hidden_state"])
            source[PRE_NORM_RMS] = self._norm.take(rows, replayed=output.can_run_graph)
        if reason := dump.stage(source, pieces):
            with self._lock:
                for rid in batch.rids:
                    self._ledger.shed(rid, reason)
        dump.hold_back()
        return dump.writer.held_back - before

    def _end(self, request: Any) -> None:
        reason = request.finished_reason.to_json()["type"]
        prompt, output = len(request.origin_input_ids), len(request.output_ids)
        with self._lock:
            if reason == "abort":
                self._ledger.abort(request.rid)
            elif request.multimodal_inputs is not None:
                self._ledger.abort(request.rid, MULTIMODAL)
            elif request.input_embeds is not None:
                self._ledger.abort(request.rid, EMBEDDINGS)
            else:
                pieces = self._ledger.finish(request.rid, prompt, output)
                if pieces and self._dump is not None:
                    rows = prompt + max(output, 1) - 1
                    tokens = tokens_of(request.origin_input_ids, request.output_ids, rows)
                    self._dump.put(Finished(request.rid, prompt, output, reason, tokens, pieces))
            self._lock.notify_all()

    def _give_up(self, reason: str) -> None:
        if self._dump is not None and self._dump.active:
            self._dump.fail(reason)

    def _describe(self) -> dict[str, Any]:
        facts = self._facts
        stage = "registered" if facts is None else "forward" if self._last_forward else "configured"
        return {
            "rank": facts and facts.rank,
            "pid": os.getpid(),
            "writer": bool(facts and facts.writer),
            "stage": stage,
            "model_class": facts and facts.model_class,
            "boundaries": list(facts.boundaries) if facts else [],
            "layers": list(facts.layers) if facts else [],
            "num_layers": facts and facts.num_layers,
            "hidden_size": facts and facts.hidden_size,
            "dtype": facts and facts.dtype,
            "plugin": __version__,
            "sglang": facts and facts.sglang,
            "warnings": list(facts.warnings) if facts else [],
            "steps": self._steps,
            "hook_us": round(self._cost / self._cost_steps * 1e6, 1) if self._cost_steps else None,
            "last_forward": self._last_forward,
            "errors": self.guard.errors,
            "last_error": self.guard.last_error,
            "modes": self._modes.describe(),
            "pre_norm": {"kind": None if self._norm.reason else "rms", "reason": self._norm.reason},
        }


def entries(batch: Any) -> list[tuple[str, int, int]]:
    """(request id, first position, rows) of a ForwardBatch's requests, in the order of its rows."""
    mode = batch.forward_mode
    if mode.is_decode():
        return [(rid, length - 1, 1) for rid, length in zip(batch.rids, batch.seq_lens_cpu.tolist(), strict=False)]
    if mode.is_target_verify() or not mode.is_extend():
        raise ValueError(f"a step of mode {mode.name} cannot be captured")
    return list(zip(batch.rids, batch.extend_prefix_lens_cpu, batch.extend_seq_lens_cpu, strict=False))


def sources(output: Any, batch: Any, boundaries: int) -> dict[str, Any]:
    """The step's tensors by the shard's names; aux [T, K*H] becomes [T, K, H]."""
    if output is None or output.hidden_states is None or output.last_hidden_states is None:
        raise ValueError("the step returned no hidden states")
    last = output.last_hidden_states
    if output.hidden_states.shape[-1] != boundaries * last.shape[-1]:
        raise ValueError(f"the step returned {output.hidden_states.shape[-1]} values a row for {boundaries} boundaries")
    return {
        "aux_hidden_states": output.hidden_states.unflatten(1, (boundaries, last.shape[-1])),
        "last_hidden_state": last,
        "token_ids": batch.input_ids,
        "positions": batch.positions,
    }
