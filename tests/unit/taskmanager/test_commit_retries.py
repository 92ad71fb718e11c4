"""Commits are tried again, only for what is left, and no longer than is allowed."""

import pytest

from tidegate.contracts.connectors import CommittableLostError
from tidegate.taskmanager import commit_retries
from tidegate.taskmanager.commit_retries import commit_with_retries


def ignore(failed):
    pass


class Committer:
    """Answers each try as scripted: with what is left, or an error. Commits everything afterwards."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    def commit(self, committables):
        self.asked.append(list(committables))
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def pauses(monkeypatch):
    slept = []
    monkeypatch.setattr(commit_retries.time, "sleep", slept.append)
    return slept


def test_what_is_committed_is_not_asked_for_again(pauses):
    heard = []
    committer = Committer([2, 3], [3])
    assert commit_with_retries(committer, [1, 2, 3], 5, 100.0, heard.append) == ([], None)
    assert committer.asked == [[1, 2, 3], [2, 3], [3]]
    assert [(f.number, f.left, f.pause_ms) for f in heard] == [(1, 2, 100.0), (2, 1, 200.0)]


def test_a_failed_try_is_told_of_before_the_next_one(pauses):
    heard = []
    commit_with_retries(
        Committer(OSError("gone")), [1, 2], 5, 100.0, lambda f: heard.append((f.describe(), len(pauses)))
    )
    assert heard == [
        ("2 committables could not be committed in try 1 of 6, the next one is in 0.1 s: OSError('gone')", 0)
    ]


def test_what_is_lost_is_not_tried_again(pauses):
    committer = Committer([2], CommittableLostError("aborted"))
    with pytest.raises(CommittableLostError, match="aborted"):
        commit_with_retries(committer, [1, 2], 5, 100.0, ignore)
    assert committer.asked == [[1, 2], [2]]


def test_a_try_that_raises_commits_nothing(pauses):
    committer = Committer([2], OSError("gone"))
    assert commit_with_retries(committer, [1, 2], 5, 100.0, ignore) == ([], None)
    assert committer.asked == [[1, 2], [2], [2]]


def test_when_the_tries_are_used_up_what_is_left_is_told_with_the_last_error(pauses):
    error = OSError("gone")
    left, last = commit_with_retries(Committer([2], error, error), [1, 2], 2, 100.0, ignore)
    assert (left, last) == ([2], error)


def test_pauses_double_up_to_half_a_minute(pauses):
    commit_with_retries(Committer(*[OSError()] * 12), [1], 12, 100.0, ignore)
    assert pauses[:3] == [0.1, 0.2, 0.4]
    assert pauses[-1] == 30.0
