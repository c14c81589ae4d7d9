"""Self-contained HTML pages: no script, nothing loaded from elsewhere."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

_STYLE = """
:root { color-scheme: light; --ink: #1b1f24; --soft: #57606a; --line: #d8dee4; --tint: #f6f8fa; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 66rem; padding: 2.5rem 1.25rem 4rem; color: var(--ink); background: #fff;
       font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .5rem; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; }
p.lead { font-size: 1.1rem; color: var(--soft); max-width: 46rem; margin: 0 0 1.5rem; }
p { max-width: 46rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .95rem; }
th, td { padding: .45rem .7rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { white-space: normal; min-width: 5rem; font-weight: 600; color: var(--soft); border-bottom-width: 2px;
     vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; font-weight: 600; }
svg { max-width: 100%; height: auto; min-width: 44rem; }
pre { background: var(--tint); padding: .8rem 1rem; border-radius: 6px; overflow-x: auto; font-size: .85rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.2rem; font-size: .9rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
"""


def page(title: str, lead: str, sections: Sequence[tuple[str, str]], style: str = "") -> str:
    """A page of headed sections, whose bodies are HTML; ``style`` is added to the style sheet of all pages."""
    body = "\n".join(f"<section><h2>{escape(heading)}</h2>\n{content}</section>" for heading, content in sections)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}{style}</style>\n</head>\n<body>\n"
        f'<h1>{escape(title)}</h1>\n<p class="lead">{escape(lead)}</p>\n{body}\n</body>\n</html>\n'
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table that scrolls sideways where the screen is narrow."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{lines}</tbody></table></div>'


def paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def facts(entries: Mapping[str, Any]) -> str:
    """Names and values, nested ones joined by commas."""
    lines = []
    for name, value in entries.items():
        shown = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, Mapping) else str(value)
        lines.append(f"<dt>{escape(name)}</dt><dd>{escape(shown)}</dd>")
    return f"<dl>{''.join(lines)}</dl>"
