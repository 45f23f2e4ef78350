"""A report as one HTML page that needs no other file and no network: what all reports look like."""

from __future__ import annotations

from html import escape

from octavo.bench.plot import STYLE

CSS = """
body { margin: 0 auto; max-width: 76rem; padding: 1.5rem 1rem 3rem; background: var(--paper); color: var(--ink); }
body { font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0; overflow-wrap: anywhere; } h2 { font-size: 1rem; margin: 0 0 .5rem; }
p { margin: 0; } .quiet { color: var(--quiet); overflow-wrap: anywhere; }
code { font: .85rem ui-monospace, monospace; overflow-wrap: anywhere; }
section { background: var(--card); border-radius: 10px; padding: .75rem 1rem; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .25rem .5rem; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; } th { color: var(--quiet); font-weight: 500; }
"""


def document(title: str, subtitle: str, body: str, css: str) -> str:
    """`body` is HTML, and `css` what only this report has."""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}{CSS}{css}
</style></head><body>
<h1>{escape(title)}</h1><p class="quiet">{escape(subtitle)}</p>
{body}</body></html>
"""
