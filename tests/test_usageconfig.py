"""The configuration of usage (proxy.usageconfig)."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from proxy import usageconfig
from proxy.config import Config
from proxy.usageconfig import SINK_KINDS, Usage
from proxy.values import REVEALED

WANTED: dict[str, Any] = {"file": {"path": "f"}, "webhook": {"url": "http://h"}, "sql": {"url": "sqlite:///d"}}


def test_nothing_is_recorded_unless_asked_for() -> None:
    """Off by default; each sink is on by its place."""
    assert Usage().sinks == ()
    for kind in SINK_KINDS:
        assert Usage.model_validate({kind: WANTED[kind]}).sinks == (kind,)
    assert Usage.model_validate(WANTED).sinks == SINK_KINDS


@pytest.mark.parametrize("name", ["Authorization", "cookie", "API-Key", "x-api-key", "sec-websocket-protocol"])
def test_keys_are_no_labels(name: str) -> None:
    """A header with a key would put it into every sink."""
    found = list(Usage(labels=("x-team", name)).conflicts())
    assert [path for path, _ in found] == ["labels"]
    assert list(Usage(labels=("x-team",)).conflicts()) == []


@pytest.mark.parametrize("url", ["", "usage.db", "sqlite://usage.db", "sqlite:///", "mysql://h/d", "sqlite:///a b"])
def test_database_has_a_url_of_a_known_form(url: str) -> None:
    """What is said of a wrong one does not hold it."""
    with pytest.raises(ValidationError) as caught:
        Usage.model_validate({"sql": {"url": url}})
    assert "input_value" not in str(caught.value)


def test_extra_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL needs a driver, SQLite none."""
    sqlite, server = (Usage.model_validate({"sql": {"url": url}}) for url in ("sqlite:///d", "postgresql://h/d"))
    assert (sqlite.sql.is_postgres, server.sql.is_postgres) == (False, True)
    assert list(server.conflicts()) == []
    monkeypatch.setattr(usageconfig, "is_installed", lambda *_: False)
    assert [path for path, _ in server.conflicts()] == ["sql.url"]
    assert list(sqlite.conflicts()) == []


@pytest.mark.parametrize("table", ["", "1a", "A", 'a"b', "a;drop", "a.b", "a" * 64])
def test_table_has_a_plain_name(table: str) -> None:
    """It becomes a part of statements."""
    with pytest.raises(ValidationError):
        Usage.model_validate({"sql": {"table": table}})


def test_secrets_are_hidden_but_from_workers() -> None:
    """A key, and the URL of a database."""
    config = Config.model_validate(
        {
            "upstream": {"url": "http://h/v1"},
            "usage": {"webhook": {"api_key": "s3cret"}, "sql": {"url": "sqlite:///s3cret"}},
        }
    )
    assert "s3cret" not in config.model_dump_json()
    assert "s3cret" not in repr(config)
    assert Config.model_validate_json(config.model_dump_json(context=REVEALED)) == config


def test_webhook_does_not_lead_back() -> None:
    """To the clients' listener, which would hand records to the backend."""
    options = {"listen": "127.0.0.1:8080", "upstream": {"url": "http://h/v1"}}
    config = Config.model_validate({**options, "usage": {"webhook": {"url": "http://localhost:8080/x"}}})
    assert [path for path, _ in config.conflicts()] == ["usage.webhook.url"]
