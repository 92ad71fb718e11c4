"""The server against its own description: schemathesis makes requests, right and wrong ones, of `/openapi.json` and
holds every answer against what is written there."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.unit.web.web_kit import FakeJobs
from tidegate.web.api import ROUTES
from tidegate.web.openapi import describe
from tidegate.web.rest import RestServer

schemathesis = pytest.importorskip("schemathesis", reason="pip install schemathesis")

schema = schemathesis.openapi.from_dict(describe(ROUTES))


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[RestServer, str]]:
    """Of a job that has ended: streams come to their end."""
    jobs = FakeJobs()
    jobs.shown = msgspec.structs.replace(jobs.shown, status_name="FINISHED", ended_ms=jobs.shown.started_ms + 5)
    jobs.over.set()
    rest = RestServer(jobs)
    yield rest, rest.start()
    rest.close()


@schema.parametrize()
@settings(
    max_examples=4,
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
def test_every_call_answers_as_it_is_described(case: schemathesis.Case, server: tuple[RestServer, str]) -> None:
    rest, url = server
    if (
        isinstance(case.path_parameters, dict)
        and "job" in case.path_parameters
        and len(case.path_parameters["job"]) % 2
    ):
        case.path_parameters["job"] = "abcd" * 8  # a job that is there
    if case.path == "/v1/login" and isinstance(case.body, dict) and isinstance(case.body.get("token"), str):
        case.body["token"] = rest.token
    case.call_and_validate(base_url=url, headers={"Authorization": f"Bearer {rest.token}"}, timeout=20)
