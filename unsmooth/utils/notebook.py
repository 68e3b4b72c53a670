"""Display of results in notebooks: an isolated frame for a page, and tables of pandas."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from unsmooth.errors import missing_package

if TYPE_CHECKING:
    import pandas

STYLE = """
:root { color-scheme: light dark; }
body { font: 14px/1.5 system-ui, sans-serif; margin: 0.6rem 0.8rem; background: Canvas; color: CanvasText; }
p { margin: 0 0 0.5rem; }
table { border-collapse: collapse; }
th, td { text-align: left; padding: 0.15rem 0.9rem 0.15rem 0; border-bottom: 1px solid #8883; }
td { font-variant-numeric: tabular-nums; vertical-align: top; overflow-wrap: anywhere; }
"""
REPORT_HEIGHT = 720  # pixels
NO_NETWORK = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


# A page of several megabytes, most of them the chart library, takes a third of that in a saved notebook.
UNPACK = """
const packed = Uint8Array.from(atob("{}"), (c) => c.charCodeAt(0));
const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
new Response(stream).text().then((page) => {{ document.open(); document.write(page); document.close(); }});
"""


def frame(page: str, height: int) -> str:
    """A page in a frame of its own origin: its scripts and styles do not reach the notebook, nor the notebook's it.

    Everything is in the attribute `srcdoc`, so that it works in Jupyter and Colab, in a saved notebook and offline.
    """
    style = f"width: 100%; height: {height}px; border: 1px solid #8886; border-radius: 4px"
    return Markup('<iframe sandbox="allow-scripts" style="{}" title="unsmooth" srcdoc="{}"></iframe>').format(
        style, str(page)
    )


def packed_frame(page: str, height: int) -> str:
    """An isolated frame for a large page with scripts, which is compressed."""
    text = base64.b64encode(gzip.compress(page.encode(), 6, mtime=0)).decode()
    return frame(f"<!doctype html><meta charset=utf-8><script>{UNPACK.format(text)}</script>", height)


def document(title: str, body: Markup) -> str:
    """A small page without scripts."""
    return Markup(
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{}</title>'
        '<meta http-equiv="Content-Security-Policy" content="{}"><style>{}</style></head><body>{}</body></html>'
    ).format(title, NO_NETWORK, Markup(STYLE), body)


def table(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> Markup:
    """A table of HTML in which everything is escaped."""
    head = Markup("").join(Markup("<th>{}</th>").format(name) for name in columns)
    lines = (Markup("").join(Markup("<td>{}</td>").format(value) for value in row) for row in rows)
    body = Markup("").join(Markup("<tr>{}</tr>").format(line) for line in lines)
    return Markup("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>").format(head, body)


def data_frame(rows: Iterable[Mapping[str, Any]], columns: Iterable[str], index: str | None = None) -> pandas.DataFrame:
    """Rows as a table of pandas, with `index` as its index."""
    try:
        import pandas
    except ImportError as error:
        raise missing_package("frame()", "pandas", "notebook") from error
    made = pandas.DataFrame(list(rows), columns=list(columns))
    return made if index is None else made.set_index(index)
