"""The stack of `deploy/compose.yaml`: its files fit together, and its commands do what they are there for.

No container is run here. The services that are Slipstream's own are run by the same commands, as processes.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.grafana.boards import FOLDER, NAMES
from tests.rig.install import CHECKOUT
from tests.rig.processes import free_port, serving
from tests.rig.prometheus import promtool
from tests.rig.slipstream import COMMAND

DEPLOY = CHECKOUT / "deploy"
SERVICES: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]


def mounts(service: str) -> dict[str, Path]:
    """What a service's container has of ours, by its path there."""
    found = {}
    for volume in SERVICES[service]["volumes"]:
        ours, theirs, mode = volume.split(":")
        assert mode == "ro"
        found[theirs] = (DEPLOY / ours).resolve()
    return found


def provisioned(kind: str) -> Any:
    """The one entry of a provisioning file."""
    (file,) = (mounts("grafana")["/etc/grafana/provisioning"] / kind).glob("*.yaml")
    document = yaml.safe_load(file.read_text())
    assert document.pop("apiVersion") == 1
    ((_, (entry,)),) = document.items()
    return entry


def test_compose_keeps_its_schema() -> None:
    """The Compose Specification's."""
    checker = str(Path(sys.executable).with_name("check-jsonschema"))
    command = [checker, "--builtin-schema", "vendor.compose-spec", str(DEPLOY / "compose.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_compose_mounts_what_there_is() -> None:
    """Docker would make an empty folder of what is missing."""
    assert all(file.exists() for service in ("prometheus", "grafana") for file in mounts(service).values())


def test_compose_pins_versions_and_stays_on_loopback() -> None:
    """No image changes by itself, and nothing is open to the network."""
    for name, service in SERVICES.items():
        assert re.search(r":(v?\d+\.\d+\.\d+|local)$", service["image"]), name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    assert [name for name, service in SERVICES.items() if "build" in service] == ["proxy"]


def test_grafana_is_given_every_board_and_the_data_source() -> None:
    """Where its provisioning looks is where the boards are, and the first that one sees is one of them."""
    folder = provisioned("dashboards")["options"]["path"]
    boards = {file: place for place, file in mounts("grafana").items() if place.startswith(f"{folder}/")}
    assert set(boards) == {FOLDER / f"{name}.json" for name in NAMES}
    assert SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] in boards.values()
    source = provisioned("datasources")
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    scraping = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())["global"]
    assert source["jsonData"]["timeInterval"] == scraping["scrape_interval"]


def test_prometheus_scrapes_the_proxy() -> None:
    """At the address of its service, in a job of the name that alerts look for."""
    config = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())
    (job,) = config["scrape_configs"]
    assert "slipstream" in job["job_name"]
    assert job["static_configs"] == [{"targets": ["proxy:9100"]}]
    assert "--config.file=/etc/prometheus/prometheus.yaml" in SERVICES["prometheus"]["command"]
    beside = {f"/etc/prometheus/{name}" for name in config["rule_files"]}
    assert beside <= set(mounts("prometheus"))


@pytest.mark.observability
def test_promtool_accepts_the_configuration(tmp_path: Path) -> None:
    """With the rules where its container has them."""
    for place, file in mounts("prometheus").items():
        shutil.copy(file, tmp_path / Path(place).name)
    assert "SUCCESS" in promtool("check", "config", tmp_path / "prometheus.yaml")


def test_commands_of_the_stack_work(tmp_path: Path) -> None:
    """Backend, proxy and load, as compose.yaml starts them, but that all names are this machine's."""
    ports = {port: str(free_port()) for port in ("8000", "8080", "9100")}

    def command(service: str) -> list[str]:
        assert SERVICES[service]["image"] == SERVICES["proxy"]["image"]  # whose entrypoint is the command
        arguments = []
        for argument in SERVICES[service]["command"]:
            here = re.sub(
                r"(?:\b(?:proxy|backend)|^|0\.0\.0\.0):(\d{4})\b", lambda m: f"127.0.0.1:{ports[m[1]]}", argument
            )
            arguments.append(here)
        return [str(COMMAND), *arguments]

    assert re.search(r'^ENTRYPOINT \["slipstream"\]$', (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    waits = {
        "load": r"rollout (1): no answer from",
        "backend": r"SIMULATED Responses backend",
        "proxy": r'"event":"listening"|listening',
    }
    with contextlib.ExitStack() as stack:
        # In the worst order: those who ask wait for those who answer.
        servers = {
            name: stack.enter_context(serving(command(name), log=tmp_path / f"{name}.log", ready=re.compile(ready)))
            for name, ready in waits.items()
        }
        assert servers["load"].wait_for(re.compile(r"rollout \d+: 21 turns in"), 40), servers["load"].output()


def test_provisioned_boards_are_json() -> None:
    """As Grafana reads them: one object a file, no comments."""
    for file in mounts("grafana").values():
        if file.suffix == ".json":
            assert isinstance(json.loads(file.read_text()), dict)
