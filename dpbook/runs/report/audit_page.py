"""Verdict of an audit as a self-contained HTML page, without scripts, pictures or external files."""

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
    """Return the page; all text that comes from the run is escaped."""
    rows = "\n".join(_row(finding) for finding in verdict.findings)
    cost = "" if verdict.cost is None else f" Watching cost {verdict.cost:.1%} of an update."
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Audit of {html.escape(program)}</title>'
        f"<style>{_STYLE}</style><h1>Audit of <code>{html.escape(program)}</code></h1>"
        f"<p>{verdict.updates} updates seen.{cost}</p><table>\n{rows}\n</table></html>\n"
    )


def _row(finding: Finding) -> str:
    result = finding.result
    location = [
        f"rank {result.rank}" if result.rank is not None else "",
        result.tensor or "",
        f"update {result.update}" if result.update else "",
        f"{result.place[0]}:{result.place[1]} {result.place[2]}" if result.place else "",
        f"follows from: {finding.because}" if finding.because else "",
        finding.book if result.status in ("FAIL", "WARN") else "",
    ]
    evidence = "<br>".join(
        [html.escape(result.message), f"<code>{html.escape(' · '.join(filter(None, location)))}</code>"]
    )
    colour = _COLOURS[result.status]
    kind = ' class="after"' if finding.because else ""
    return f'<tr{kind}><td style="color:{colour}"><b>{result.status}</b><td>{html.escape(finding.claim)}<td>{evidence}'
