"""An audit's verdict as a page of its own: no script, no picture, nothing from elsewhere."""

import html

from dpbook.core import palette
from dpbook.runs.audit import Finding, Verdict

_COLOURS = {"PASS": palette.PASS, "FAIL": palette.FAIL, "WARN": "#8a5a00", "----": "#666666"}
_STYLE = (
    "body{font:15px/1.4 system-ui,sans-serif;max-width:72em;margin:2em auto;padding:0 1em}"
    "td{vertical-align:top;padding:.4em .8em;border-top:1px solid #ddd}"
    "code{font-size:13px}.after td{padding-left:2.5em}"
)


def page(verdict: Verdict, program: str) -> str:
    """The whole page; everything that comes from the run is text in it."""
    rows = "\n".join(_row(line) for line in verdict.findings)
    cost = "" if verdict.cost is None else f" Watching cost {verdict.cost:.1%} of an update."
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Audit of {html.escape(program)}</title>'
        f"<style>{_STYLE}</style><h1>Audit of <code>{html.escape(program)}</code></h1>"
        f"<p>{verdict.updates} updates seen.{cost}</p><table>\n{rows}\n</table></html>\n"
    )


def _row(line: Finding) -> str:
    found = line.result
    where = [
        f"rank {found.rank}" if found.rank is not None else "",
        found.tensor or "",
        f"update {found.update}" if found.update else "",
        f"{found.place[0]}:{found.place[1]} {found.place[2]}" if found.place else "",
        f"follows from: {line.because}" if line.because else "",
        line.book if found.status in ("FAIL", "WARN") else "",
    ]
    told = "<br>".join([html.escape(found.message), f"<code>{html.escape(' · '.join(filter(None, where)))}</code>"])
    colour = _COLOURS[found.status]
    kind = ' class="after"' if line.because else ""
    return f'<tr{kind}><td style="color:{colour}"><b>{found.status}</b><td>{html.escape(line.claim)}<td>{told}'
