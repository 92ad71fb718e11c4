"""What Spark's own page is told of a job. That it renders it so is tested on Spark (tests/spark/test_page.py)."""

from __future__ import annotations

import xml.etree.ElementTree as Xml
from dataclasses import dataclass

import pytest

from tidegate.spark.spark_page import description


@dataclass
class Context:
    uiWebUrl: str | None


def never(patience_s: float) -> str:
    raise AssertionError("nobody waits for a page that is not linked")


def parsed(text: str) -> Xml.Element:
    """As Spark does it. What cannot be parsed would be shown with its tags."""
    return Xml.fromstring(f"<span>{text}</span>")


@pytest.mark.parametrize("name", ["orders", "<b>a & b</b>", '<a href="x">', "tab\tbell\x07 \ud800 line\nend"])
def test_a_name_is_a_text_whatever_it_has_in_it(name: str) -> None:
    for address in ("http://127.0.0.1:8081", ""):
        told = parsed(description(Context("http://here:4040"), name, "abc", lambda _, found=address: found))
        assert [e.tag for e in told.iter()] == ["span", "a"] if address else ["span"]
        shown = name.replace("\x07", "\ufffd").replace("\ud800", "\ufffd")
        assert (told.text or "").startswith(shown)


def test_the_link_has_no_scheme_since_spark_allows_none() -> None:
    told = parsed(description(Context("http://here:4040"), "orders", "abc", lambda _: "http://127.0.0.1:8081"))
    assert (told[0].get("href"), told[0].text) == ("//127.0.0.1:8081/#/job/abc", "http://127.0.0.1:8081")


def test_an_address_of_another_scheme_is_told_and_not_linked() -> None:
    told = description(Context("http://here:4040"), "orders", "abc", lambda _: "https://here:8081")
    assert told == "orders · https://here:8081"


def test_without_a_page_of_spark_nothing_is_waited_for() -> None:
    assert description(Context(None), "orders", "abc", never) == "orders"
