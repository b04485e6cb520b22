"""The first line: how is it?"""

from kimi_console.tui import format as fmt
from kimi_console.tui.cells import Line, Role, crop, width
from kimi_console.tui.view import GLYPHS, View, front, short_model

LINKS: dict[str, tuple[str, Role]] = {
    "live": ("●", "good"),
    "connecting": ("◐", "move"),
    "lost": ("◌", "warn"),
    "replay": ("▶", "accent"),
    "ended": ("■", "dim"),
}


def draw(view: View, cells: int) -> Line:
    """host · model · layout · version, status, time, last good start, link, clock; what is short of room goes."""
    end = _link(view, cells)
    for level in (2, 1, 0):
        who, how = _who(view, level), _status(view, level)
        spare = cells - width(who) - width(how) - width(end)
        if spare >= 2 or level == 0:
            break
    if spare < 0:
        return crop([*how, *who, *end], cells)
    if level == 0:
        return [*who, (" " * min(2, spare), "plain"), *how, (" " * max(0, spare - 2), "plain"), *end]
    before = max(1, spare // 2)
    return [*who, (" " * before, "plain"), *how, (" " * (spare - before), "plain"), *end]


def _who(view: View, level: int) -> Line:
    agent, run = view.state.agent, view.run
    line: Line = [(f" {agent.host if agent and not view.title else view.title}", "bright")]
    if run is None:
        return line
    line.append((f"  {short_model(run.started.model)}", "plain"))
    if level > 0:
        line.append((f"  tp{run.started.tp}", "dim"))
    sglang = run.started.sglang or (agent.sglang if agent else None)
    if level > 1 and sglang:
        line.append((f"  sglang {sglang}", "dim"))
    return line


def _status(view: View, level: int) -> Line:
    word, since = view.status
    glyph, role = GLYPHS.get(word, ("·", "plain"))
    line: Line = [(f"{glyph} {word}", role)]
    if since:
        line.append((f"  {fmt.duration(view.now - since)}", "bright"))
    run = view.run
    if run is None:
        return line
    if word in ("HUNG", "SLOW") and level > 0 and run.ready_time is None:
        line.append((f' in "{front(run)}"', role))
    elif word == "LOST":
        line.append((f"  was {run.status}", "stale"))
    elif level > 1 and run.exited is not None:
        line.append((f"  ended, exit code {fmt.DASH if run.exited.code is None else run.exited.code}", "dim"))
    good = run.baseline
    if good is not None and word in ("STARTING", "SLOW", "HUNG") and level > 0:
        which = "last good start" if good.starts == 1 else f"{good.starts} good starts"
        line.append((f"   {which} {fmt.duration(good.total)}", "dim"))
    elif word == "READY" and run.ready_time is not None and level > 1:
        beside = f" of {fmt.duration(good.total)}" if good is not None else ""
        line.append((f"   started in {fmt.duration(run.ready_time - run.time)}{beside}", "dim"))
    return line


def _link(view: View, cells: int) -> Line:
    glyph, role = LINKS.get(view.link.state, ("·", "plain"))
    word = "REPLAY" if view.link.state == "replay" else view.link.state
    line: Line = [(f"{glyph} {word}", role)]
    if view.read_only and cells >= 100:
        line.append(("  read-only", "dim"))
    return [*line, (f"  {fmt.clock(view.now)} ", "dim")]
