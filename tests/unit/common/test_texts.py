from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.common.texts import all_encodable, bounded, encodable

ANY_TEXT = st.text(st.characters(exclude_categories=()))  # with lone surrogates


@given(ANY_TEXT)
def test_any_text_becomes_encodable_and_stays_when_it_was(text: str) -> None:
    made = encodable(text)
    made.encode()
    assert encodable(made) == made
    if not any("\ud800" <= c <= "\udfff" for c in text):
        assert made == text


def test_texts_are_found_as_deep_as_they_are() -> None:
    assert all_encodable({"\ud800": [("\udc00", b"\xff", 1)]}) == {"\\ud800": [["\\udc00", b"\xff", 1]]}


@pytest.mark.parametrize("length", [0, 999, 1000, 1001, 50_000_000])
def test_a_text_is_bounded_with_its_beginning_and_its_end(length: int) -> None:
    text = "b" + "x" * max(0, length - 2) + "e"
    cut = bounded(text, 1000)
    assert len(cut) <= 1000
    assert (cut[0], cut[-1]) == ("b", "e")
    assert (cut == text) == (len(text) <= 1000)
    assert bounded(cut, 1000) == cut
