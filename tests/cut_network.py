"""Jobs whose every connection leads through a proxy that can be cut."""

from __future__ import annotations

import pytest

from tests.cut_proxy import CutProxy
from tidegate.jobmanager.gang import Gang
from tidegate.spark.streaming import job_manager


class Network:
    """Every connection of the jobs that start from now on leads through a proxy of this process."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._proxies: dict[str, CutProxy] = {}  # by the address that they lead to
        self.data: list[CutProxy] = []
        self.control: list[CutProxy] = []
        addresses, launch = Gang.addresses, job_manager.SlotLaunch
        assert isinstance(addresses, property)
        real = addresses.fget
        assert real is not None
        patch.setattr(Gang, "addresses", property(lambda gang: [self._through(a, self.data) for a in real(gang)]))
        patch.setattr(
            job_manager,
            "SlotLaunch",
            lambda **fields: launch(
                **{**fields, "control_address": self._through(fields["control_address"], self.control)}
            ),
        )

    def _through(self, address: str, kind: list[CutProxy]) -> str:
        if address not in self._proxies:
            self._proxies[address] = CutProxy(address)
            kind.append(self._proxies[address])
        return self._proxies[address].address

    def close(self) -> None:
        for proxy in self._proxies.values():
            proxy.close()
