"""What every worker starts with (:mod:`proxy.workers.process`); how processes live is in test_supervisor.py."""

from __future__ import annotations

from proxy.config import Address, Config
from proxy.workers.process import Template


def test_workers_share_what_is_allowed_to_all() -> None:
    """Memory is divided, the address is the real one, and everything else is as the operator chose it."""
    chosen = Config.model_validate(
        {
            "upstream": {"url": "http://b/v1", "api_key": "sk-key", "headers": {"x-a": "b"}},
            "workers": 4,
            "cache": {"max_total_bytes": "4MiB", "max_bytes": "3MiB"},
            "response_store": {"max_bytes": 1001, "max_age": "90s"},
            "usage": {"spool": {"max_bytes": "2MiB"}, "file": {"path": "f"}},
            "drain_timeout": "250ms",
        }
    )
    template = Template.of(chosen, Address("127.0.0.1", 4711), 4, b"k" * 32)
    own = Config.model_validate_json(template.config)
    assert own.listen == Address("127.0.0.1", 4711)
    assert own.workers == 1
    assert (own.cache.max_total_bytes, own.response_store.max_bytes) == (2**20, 250)
    assert own.usage.spool.max_bytes == 2**20  # no share is smaller
    assert own.usage.file == chosen.usage.file
    assert own.default.api_key is not None
    assert own.default.api_key.get_secret_value() == "sk-key"
    same = {"listen", "workers", "cache", "response_store", "usage"}
    assert own.model_dump(exclude=same) == chosen.model_dump(exclude=same)
    assert own.cache.max_bytes == chosen.cache.max_bytes
    assert own.response_store.max_age == 90
    assert template.owner_key == b"k" * 32


def test_credential_is_hidden_elsewhere() -> None:
    """It is written as it is for a worker alone."""
    chosen = Config.model_validate({"upstream": {"url": "http://b/v1", "api_key": "sk-key"}})
    assert "sk-key" not in chosen.model_dump_json()
