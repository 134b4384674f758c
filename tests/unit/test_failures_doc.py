"""docs/failures.md speaks of metrics, settings and log lines that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from config.settings import Settings
from gateway.auth_service.metrics import AuthMetrics
from gateway.metrics import Metrics
from gateway.supervisor.metrics import SupervisorMetrics

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/failures.md").read_text()
WORDS = sorted(set(re.findall(r"`([a-z][a-z0-9_.]*)[`{]", TEXT)))
METRICS = [word for word in WORDS if word.startswith("gateway_")]
SETTINGS = [word for word in WORDS if re.match(r"(kafka|mqtt|flow|dead_letter|http|auth|emqx)\.", word)]
EVENTS = [
    word
    for word in WORDS
    if re.fullmatch(
        r"(produce|producer|batch|dead_letter|route|topic|kafka|mqtt|worker|supervisor|reload|auth|emqx_not)_[a-z_]+",
        word,
    )
]


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_exists(name: str) -> None:
    known = (*Metrics.definitions(), *SupervisorMetrics.definitions(), *AuthMetrics.definitions())
    assert name in {one.name for one in known}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_exists(name: str) -> None:
    model = Settings
    for part in name.split("."):
        assert part in model.model_fields, f"{name}: no {part}"
        model = model.model_fields[part].annotation  # type: ignore[assignment]


@pytest.mark.parametrize("name", EVENTS)
def test_a_log_line_exists(name: str) -> None:
    sources = [path.read_text() for folder in ("bridge", "gateway", "auth") for path in (ROOT / folder).rglob("*.py")]
    assert any(f'"{name}"' in source for source in sources)


def test_the_page_speaks_of_all_three() -> None:
    assert len(METRICS) > 5
    assert len(SETTINGS) > 5
    assert len(EVENTS) > 5
