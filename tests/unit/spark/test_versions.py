"""What an older Spark lacks is said in one sentence, with what to use instead."""

from __future__ import annotations

from typing import Any

import pytest

import tidegate.datastream.connectors.spark as connectors
from tidegate.common.errors import ConfigurationError
from tidegate.spark import versions
from tidegate.spark.state_tables import register


def test_data_sources_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "has_python_data_sources", lambda: False)
    monkeypatch.setattr(versions.pyspark, "__version__", "3.5.6")
    needs = "needs Spark 4.0 or newer, which has data sources in Python, and this is 3.5.6; "
    with pytest.raises(ConfigurationError, match=f"^PySparkSource {needs}read a DataFrame instead"):
        _ = connectors.PySparkSource
    session: Any = None
    with pytest.raises(ConfigurationError, match=rf"tidegate-state.*{needs}use tidegate.spark.state_tables.read\("):
        register(session)
