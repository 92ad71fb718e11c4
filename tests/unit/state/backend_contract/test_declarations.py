"""A name stands for one state, and what is wrong is named."""

from __future__ import annotations

import pytest

from tests.unit.state.backend_contract.states import (
    VALUE,
    at,
)
from tidegate.common.errors import ConfigurationError, SerializationError
from tidegate.common.time import Time
from tidegate.datastream.state import (
    ListStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from tidegate.state.evolution import StateSchemaError


def test_a_name_stands_for_one_state(backends):
    backend = backends.make()
    assert backend.get_state(VALUE) is backend.get_state(ValueStateDescriptor("v"))
    with pytest.raises(ConfigurationError, match=r"'op'.*'v'.*value state and as a list state"):
        backend.get_state(ListStateDescriptor("v"))
    with pytest.raises(ConfigurationError, match="per window"):
        backend.get_state(ValueStateDescriptor("v"), namespaced=True)


def test_state_without_a_current_key_is_refused(backends):
    state = backends.make().get_state(VALUE)
    with pytest.raises(ConfigurationError, match=r"'op'.*no current key"):
        state.value()


def test_another_kind_than_in_the_snapshot_is_refused(backends, sink):
    backend = backends.make()
    backend.get_state(VALUE)
    again = backends.restored([backend.snapshot(1).write(sink)], sink)
    with pytest.raises(StateSchemaError, match=r"'v' is a value state in the snapshot.*list state"):
        again.get_state(ListStateDescriptor("v"))  # of this class, since a restart cannot help
    lasting = ValueStateDescriptor("v")
    lasting.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).build())
    with pytest.raises(StateSchemaError, match="without a time to live"):
        again.get_state(lasting)


def test_a_value_that_cannot_be_pickled_is_named(backends, sink):
    backend = backends.make()
    state = backend.get_state(VALUE)
    at(backend, "culprit")
    state.update(x for x in ())
    with pytest.raises(SerializationError, match=r"'op'.*'v'.*culprit.*generator"):
        backend.snapshot(1).write(sink)
