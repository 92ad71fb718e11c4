"""What Spark's own page shows of a job: its name, and where Tidegate's page is.

Spark takes a description for HTML when it is XML that has only links, spans and line breaks, and links only to its own
host, which it sees by a "/" at their beginning; anything else it shows as plain text. So names are escaped, and the
link leaves out the scheme ("//host:port/"): the browser takes that of Spark's page. Where that is another than ours,
and behind a proxy of Spark's page, which changes all links, the address is there to be read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol
from urllib.parse import urlsplit
from xml.sax.saxutils import escape

PATIENCE_S = 1.0
"""How long a job that starts waits for the address of its page."""

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class HasPage(Protocol):
    """Of a SparkContext."""

    @property
    def uiWebUrl(self) -> str | None: ...


def description(sc: HasPage, text: str, job_id: str, address: Callable[[float], str]) -> str:
    """For `SparkContext.setJobGroup`. `address(patience)` waits for the address of Tidegate's page ("": there is none)
    for so many seconds at most; not asked for when Spark has no page."""
    told = escape(_NOT_XML.sub("\ufffd", text))
    spark = sc.uiWebUrl
    page = address(PATIENCE_S) if spark else ""
    if not page:
        return told
    ours = urlsplit(page)
    if ours.scheme != urlsplit(spark).scheme:
        return f"{told} · {escape(page)}"
    return f'{told} · <a href="//{ours.netloc}/#/job/{job_id}">{escape(page)}</a>'
