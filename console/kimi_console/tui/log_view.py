"""The log: only what is in the window is read from the spool and drawn, ten times a second at most."""

from collections import OrderedDict
from typing import ClassVar, Final

from textual import events, work
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from kimi_agent.errors import KimiError
from kimi_console.store.expression import Pattern
from kimi_console.store.filter import LogFilter
from kimi_console.store.lines import Lines
from kimi_console.tui import format as fmt
from kimi_console.tui.cells import Line, fit
from kimi_console.tui.log_style import Query, coloured, highlighted, parse_query
from kimi_console.tui.paint import Brush

FRAME: Final = 0.1
"""Seconds between two looks at the spool."""
INLINE: Final = 2000
"""So many new lines are filtered at once; more are left to a thread."""
STRIPS_KEPT: Final = 1024
WIDEST: Final = 16_400


class LogView(ScrollView, can_focus=True):
    """A window on a store of lines: follows its end, or stays exactly where the reader is."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "lines(-1)", show=False), Binding("down,j", "lines(1)", show=False),
        Binding("pageup", "pages(-1)", show=False), Binding("pagedown", "pages(1)", show=False),
        Binding("space", "space", show=False),
        Binding("home", "top", show=False), Binding("end", "follow", show=False),
        Binding("left", "columns(-16)", show=False), Binding("right", "columns(16)", show=False),
    ]  # fmt: skip

    class TitleChanged(Message):
        """What the pane's title says has changed."""

    def __init__(self, spool: Lines, *, ascii: bool = False) -> None:  # noqa: A002 - the option's name
        super().__init__(id="log-view")
        self.spool = spool
        self.follow = True
        self.query_filter: Query | None = None
        self.query_search: Query | None = None
        self.hit: int | None = None
        """Line number of the current match of the search."""
        self.rank_cells = 0
        self.keys_given_up = False
        """Whether space and the arrows left and right are the screen's."""
        self._filter: LogFilter | None = None
        self._generation = spool.generation
        self._shown = 0
        self._read = 0
        """Lines there were when following stopped."""
        self._anchor: int | None = None
        """Line to put at the top once the filter has come to it."""
        self._column = 0
        self._searching = False
        self._title_text: Line = []
        self._strips: OrderedDict[tuple[object, ...], Strip] = OrderedDict()
        self._brush = Brush(self)
        self._brush.ascii = ascii

    def on_mount(self) -> None:
        """Look at the spool at a fixed rate: cost follows frames, not lines."""
        self.set_interval(FRAME, self.tick)

    @property
    def count(self) -> int:
        """Lines that the view can show: all, or those that pass the filter."""
        return len(self.spool) if self._filter is None else len(self._filter.indices)

    @property
    def title(self) -> Line:
        """State of the view for its pane's title."""
        total = len(self.spool)
        below = self.count - self._place(self._read)
        state: Line = [("following", "dim")] if self.follow else [(f"{fmt.count(below)} new below", "accent")]
        if not self.follow and below <= 0:
            state = [("paused", "accent")]
        lines: Line = [(f"  {fmt.count(total)} {'line' if total == 1 else 'lines'}", "dim")]
        if self._filter is not None and self.query_filter is not None:
            lines = [(f"  {fmt.count(self.count)} of {fmt.count(total)} lines with ", "dim"),
                     (self.query_filter.text, "accent")]  # fmt: skip
            if self._filter.behind > INLINE:
                lines.append((f"  filtering {fmt.share(self._filter.scanned, total)}", "move"))
        if self.query_search is not None:
            lines += [("  /", "dim"), (fit(self.query_search.text, 24), "accent"),
                      (" searching" if self._searching else " n N", "dim")]  # fmt: skip
        if self.spool.lost:
            lines.append((f"  {fmt.count(self.spool.lost)} lines lost: this machine's disk is full", "bad"))
        return [*state, *lines]

    @property
    def _end(self) -> int:
        """Where the window stands when it follows: at the last line, or at the last that has been played."""
        head = self.spool.head
        if head is None:
            return self.max_scroll_y
        return max(0, min(self._place(head) - self.size.height, self.max_scroll_y))

    def number(self, place: int) -> int | None:
        """Line number at a place of the view."""
        if place < 0 or place >= self.count:
            return None
        return place if self._filter is None else int(self._filter.indices[place])

    def tick(self) -> None:
        """Take new lines in; move only when following."""
        if self._generation != self.spool.generation:
            self._generation = self.spool.generation
            self._strips.clear()
            self.hit, self.follow, self._anchor = None, True, None
        self._advance_filter()
        count = self.count
        if count != self._shown:
            grown_in_window = self._shown < self.scroll_offset.y + self.size.height or count < self._shown
            self._shown = count
            self.virtual_size = Size(self.size.width, count)
            if grown_in_window:
                self.refresh()
        if self._anchor is not None and (self._filter is None or self._filter.scanned > self._anchor):
            self._go(min(self._place(self._anchor), self.max_scroll_y))
            self._anchor = None
        if self.follow:
            self._read = len(self.spool)
            if self.scroll_offset.y != self._end:
                self._go(self._end)
                self.refresh()
        title = self.title
        if title != self._title_text:
            self._title_text = title
            self.post_message(self.TitleChanged())

    def _advance_filter(self) -> None:
        if self._filter is not None and self._filter.problem is not None:
            self.notify(str(self._filter.problem), severity="error", markup=False)
            self.set_filter("")
        if self._filter is None or not self._filter.behind:
            return
        if self._filter.behind <= INLINE and not self._building():
            self._filter.advance(INLINE, FRAME)
        elif not self._building():
            self._build_filter(self._filter)

    def _building(self) -> bool:
        return any(worker.group == "filter" and worker.is_running for worker in self.workers)

    @work(thread=True, group="filter", exit_on_error=False)
    def _build_filter(self, index: LogFilter) -> None:
        index.build()

    def set_filter(self, text: str) -> None:
        """Show only matching lines; with no text, all again. The line at the top stays at the top.

        Raises:
            UsageError: the regular expression is not one.
        """
        query = parse_query(text) if text else None
        self._anchor = None if self.follow else self.number(self.scroll_offset.y)
        if self._filter is not None:
            self._filter.cancelled = True
        self.query_filter = query
        self._filter = LogFilter(self.spool, query.pattern, inverse=query.inverse) if query else None
        if self._filter is not None:
            self._filter.advance(seconds=FRAME)
        self._shown = -1
        self.tick()
        self.refresh()

    def set_search(self, text: str) -> None:
        """Mark what matches and go to the nearest match, backwards from the end when following.

        Raises:
            UsageError: the regular expression is not one.
        """
        self._strips.clear()
        self.query_search = parse_query(text) if text else None
        self.hit = None
        self.refresh()
        self.tick()
        if self.query_search is not None:
            self._find(self.query_search.pattern, backward=self.follow, again=False)

    def find_again(self, *, backward: bool) -> None:
        """Go to the next match, or the one before."""
        if self.query_search is not None:
            self._find(self.query_search.pattern, backward=backward, again=True)

    @work(thread=True, group="search", exclusive=True, exit_on_error=False)
    def _find(self, pattern: Pattern, *, backward: bool, again: bool) -> None:
        self._searching = True
        start = self.hit
        if start is None:
            start = self.number(self.count - 1 if backward else self.scroll_offset.y) or 0
        elif again:
            start += -1 if backward else 1
        try:
            found = self._next_match(pattern, start, backward)
            wrapped = found is None
            if found is None:
                found = self._next_match(pattern, len(self.spool) - 1 if backward else 0, backward)
        except KimiError as error:
            self.app.call_from_thread(self.notify, str(error), severity="error", markup=False)
            return
        finally:
            self._searching = False
        self.app.call_from_thread(self._found, found, wrapped and again)

    def _next_match(self, pattern: Pattern, start: int, backward: bool) -> int | None:
        if not 0 <= start < len(self.spool):
            return None
        found = self.spool.search(pattern, start, backward)
        while found is not None and self._filter is not None:
            place = self._filter.place(found)
            if place < len(self._filter.indices) and self._filter.indices[place] == found:
                break
            found += -1 if backward else 1
            found = self.spool.search(pattern, found, backward) if 0 <= found < len(self.spool) else None
        return found

    def _found(self, line: int | None, wrapped: bool) -> None:
        text = self.query_search.text if self.query_search else ""
        if line is None:
            self.notify(f"nothing in the log matches {text}", severity="warning", markup=False)
            return
        if wrapped:
            self.notify("search went on from the other end", timeout=2, markup=False)
        self._pause()
        self.hit = line
        place, height = self._place(line), self.size.height
        if not self.scroll_offset.y <= place < self.scroll_offset.y + height:
            self._go(max(0, place - height // 2))
        self._strips.clear()
        self.refresh()
        self.tick()

    def _place(self, line: int) -> int:
        return line if self._filter is None else self._filter.place(line)

    def _pause(self) -> None:
        if self.follow:
            self.follow = False
            self._read = len(self.spool)

    def _go(self, y: float) -> None:
        self.scroll_to(y=y, animate=False, force=True)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Scrolling away from the end stops following; coming back to it resumes."""
        super().watch_scroll_y(old_value, new_value)
        if new_value < old_value and new_value < self._end:
            self._pause()
        elif self.spool.head is not None:
            if new_value > self._end:
                self._pause()
        elif new_value > old_value and new_value >= self.max_scroll_y and not self.follow and self.hit is None:
            self.follow = True

    def action_lines(self, by: int) -> None:
        """Scroll by lines."""
        self._leave_hit()
        if by < 0 or self.spool.head is not None:
            self._pause()
        self._go(min(max(0, self.scroll_offset.y + by), self.max_scroll_y))
        self.tick()

    def action_pages(self, by: int) -> None:
        """Scroll by a window's height."""
        self.action_lines(by * max(1, self.size.height - 1))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Some keys are the screen's, where it says so."""
        return not (self.keys_given_up and action in ("space", "columns"))

    def action_space(self) -> None:
        """Scroll down by a window's height."""
        self.action_pages(1)

    def action_top(self) -> None:
        """Go to the first line."""
        self.action_lines(-self.count)

    def action_follow(self) -> None:
        """Go to the end and stay there."""
        self._leave_hit()
        self.follow = True
        self.tick()

    def action_columns(self, by: int) -> None:
        """Scroll sideways: long lines are never wrapped."""
        self._column = max(0, min(self._column + by, WIDEST))
        self.refresh()

    def _leave_hit(self) -> None:
        if self.hit is not None:
            self.hit = None
            self._strips.clear()

    def on_resize(self, event: events.Resize) -> None:
        """The window changed; the last line stays in sight when following."""
        self._shown = -1
        self.tick()

    def render_line(self, y: int) -> Strip:
        """A row of the window, from the cache or from the spool."""
        cells = self.scrollable_content_region.width
        number = self.number(y + self.scroll_offset.y)
        if number is None:
            return self._brush.strip([], cells)
        later = self.spool.head is not None and number >= self.spool.head
        key = (number, cells, self._column, self.app.theme, self.rank_cells, self._brush.style("plain"), later)
        strip = self._strips.get(key)
        if strip is None:
            strip = self._draw(number, cells, later=later)
            self._strips[key] = strip
            if len(self._strips) > STRIPS_KEPT:
                self._strips.popitem(last=False)
        else:
            self._strips.move_to_end(key)
        return strip

    def _draw(self, number: int, cells: int, *, later: bool) -> Strip:
        if number < self.spool.first:
            return self._brush.strip([("· dropped: the spool is full", "dim")], cells)
        lines = self.spool.lines(number, number + 1)
        line = coloured(lines[0] if lines else "", self.rank_cells)
        if self.query_search is not None and not self.query_search.inverse:
            line = highlighted(line, self.query_search.pattern)
        if number == self.hit:
            line = [(text, role if role == "match" else "bright") for text, role in line]
        if later:
            line = [(text, role if role == "match" else "dim") for text, role in line]
        return self._brush.strip([(" ", "plain"), *line], self._column + cells).crop(self._column)
