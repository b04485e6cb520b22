"""A comparison as text, for those without a screen."""

from kimi_agent.counts import many
from kimi_console.compare.comparison import Comparison


def comparison_text(found: Comparison) -> str:
    """What differs, line by line."""
    lines = []
    for name, side in (("A", found.a), ("B", found.b)):
        lines.append(
            f"{name}  {side.title}  {side.status}  {side.seconds:.1f} s  {many(side.lines, 'line')}"
            f"  {side.verdict}".rstrip()
        )
    if found.parting is None:
        lines.append("both say the same until they are ready")
    else:
        lines += [f'they part in "{found.parting.phase}"', f"  both  {found.parting.after}"]
        lines += [f"  {name}     {said or '-'}" for name, said in (("A", found.parting.a), ("B", found.parting.b))]
    lines += [f"argument {one.name}: A {one.a or '-'}, B {one.b or '-'}" for one in found.arguments]
    for pair in found.phases:
        a, b = ("-" if value is None else f"{value:.1f} s" for value in (pair.a, pair.b))
        lines.append(f"{pair.phase:<14}{a:>10}{b:>10}{'  <' if pair.phase == found.slower else ''}")
    for name, only in (("A", found.only_a), ("B", found.only_b)):
        lines += [f"only {name}, line {one.number}, {one.phase}: {one.line}" for one in only]
    return "\n".join(lines) + "\n"
