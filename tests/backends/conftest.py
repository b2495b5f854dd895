"""The large servers: installed in environments of their own, with the same small model as llama-server."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.rig import install
from tests.rig.processes import free_port, serving

_HERE: Final = Path(__file__).resolve().parent
_MODEL: Final = _HERE.parent / "data/qwen3-toy"
_READY: Final = re.compile(r"Application startup complete")

#: pip takes the build that the machine is configured for; on a machine without an accelerator that should be the CPU's.
_TORCH: Final = "torch==2.13.0"


@dataclass(frozen=True)
class ModelServer:
    """A running model server.

    Attributes:
        name: Its profile's name.
        base_url: What a client's base URL is.
        model: What it calls its model.
    """

    name: str
    base_url: str
    model: str


@pytest.fixture(scope="session", params=["transformers", "vllm"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    """Each of the servers, with the test model."""
    name: str = request.param
    python = install.environment(name, _HERE / f"pypi/{name}.txt", first=[_TORCH])
    port = free_port()
    model, command, environ = (_transformers if name == "transformers" else _vllm)(python, port)
    folder = tmp_path_factory.mktemp(name)
    offline = {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    with serving(
        command,
        log=folder / "server.log",
        ready=_READY,
        environ={**os.environ, **offline, **environ},
        cwd=folder,
        seconds=600,
    ):
        yield ModelServer(name, f"http://127.0.0.1:{port}/v1", model)


def _transformers(python: Path, port: int) -> tuple[str, Sequence[str], dict[str, str]]:
    program = str(python.with_name("transformers"))
    options = ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--default-seed", "1"]
    return str(_MODEL), [program, "serve", str(_MODEL), *options], {}


def _vllm(python: Path, port: int) -> tuple[str, Sequence[str], dict[str, str]]:
    # The command `vllm` looks for a distribution of that name and does not find this one.
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(_MODEL)]
    options = [
        *("--served-model-name", "qwen3-toy", "--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", "float32", "--enforce-eager", "--max-model-len", "16384", "--max-num-seqs", "4"),
        *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    ]
    environ = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_LOOPBACK_IP": "127.0.0.1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    return "qwen3-toy", [*command, *options], environ
