"""The servers that these tests talk to: a llama-server, and Slipstream in front of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rig.llama import Llama, llama_server
from tests.rig.slipstream import Slipstream, slipstream


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llama]:
    """A llama-server with two slots."""
    with llama_server(tmp_path_factory.mktemp("llama")) as server:
        yield server


@pytest.fixture(scope="session")
def proxy(llama: Llama, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slipstream]:
    """Slipstream with its defaults: the profile that assumes the least."""
    with slipstream(tmp_path_factory.mktemp("proxy"), llama.base_url) as running:
        yield running


@pytest.fixture(scope="session")
def llamacpp_proxy(llama: Llama, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slipstream]:
    """Slipstream, told what stands behind it."""
    with slipstream(tmp_path_factory.mktemp("proxy"), llama.base_url, "--profile", "llamacpp") as running:
        yield running


@pytest.fixture(params=["generic", "llamacpp"])
def any_proxy(request: pytest.FixtureRequest, proxy: Slipstream, llamacpp_proxy: Slipstream) -> Slipstream:
    """Each of the two."""
    return proxy if request.param == "generic" else llamacpp_proxy
