"""Files for Kubernetes, Ray Serve and Docker Compose match their schemas and our settings."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from scanline.service import __version__, distributed
from scanline.service.settings import Settings
from tests.conftest import ROOT

FOLDER = Path(distributed.__file__).parent
SERVICE = yaml.safe_load((FOLDER / "kubernetes" / "rayservice.yaml").read_text())
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
CONFIGS = {
    "serve.yaml": yaml.safe_load((FOLDER / "serve.yaml").read_text()),
    "rayservice.yaml": yaml.safe_load(SERVICE["spec"]["serveConfigV2"]),
}


def service_pods() -> list[Any]:
    config = SERVICE["spec"]["rayClusterConfig"]
    groups = [config["headGroupSpec"], *config["workerGroupSpecs"]]
    named = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "one"}}
    return [named | {"template": group["template"]} for group in groups]


def test_kubernetes_objects_match_their_schemas() -> None:
    validation = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is missing")
    plain = list(yaml.safe_load_all((FOLDER / "kubernetes" / "pods.yaml").read_text()))
    assert [one["kind"] for one in plain] == ["Deployment", "Service", "HorizontalPodAutoscaler"]
    for one in [*plain, *service_pods()]:
        validation.validate(one, validation.latest_version(), strict=True)


@pytest.mark.parametrize("name", CONFIGS)
def test_ray_serve_configs_match_their_schema(name: str) -> None:
    schema = pytest.importorskip("ray.serve.schema", reason="Ray is not installed")
    (application,) = schema.ServeDeploySchema.model_validate(CONFIGS[name]).applications
    assert callable(application_builder(application.import_path))
    assert Settings(**application.args, cluster=True).max_replicas >= 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"port": 9000}, "port: no effect, because Ray Serve's proxy"),
        ({"max_connections": 9, "root_path": "/x"}, "max_connections, root_path: "),
        ({"cluster": False}, "always draws on replicas"),
        ({"min_replica": 2}, "min_replica\n  Extra inputs are not permitted"),
    ],
)
def test_arguments_without_effect_are_refused(given: dict[str, Any], said: str) -> None:
    pytest.importorskip("ray.serve", reason="Ray is not installed")
    with pytest.raises(ValueError, match=re.escape(said)):
        application_builder(CONFIGS["serve.yaml"]["applications"][0]["import_path"])(given)


def test_variables_without_effect_are_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("ray.serve", reason="Ray is not installed")
    monkeypatch.setenv("SCANLINE_MAX_CONNECTIONS", "9")
    monkeypatch.setenv("SCANLINE_HOST", "0.0.0.0")  # as the container image sets it
    from scanline.service.distributed.application import _settings

    assert _settings({}).max_connections == 9
    assert "SCANLINE_MAX_CONNECTIONS: no effect, because Ray Serve's proxy" in caplog.text
    assert "HOST" not in caplog.text


def test_replicas_do_not_read_the_key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may exist on the frontend's machine only, although the variable is set everywhere."""
    pytest.importorskip("ray.serve", reason="Ray is not installed")
    from scanline.service.distributed.deployment import explicit_settings

    (tmp_path / "keys").write_text("secret")
    settings = Settings(api_key_file=tmp_path / "keys", cluster=True)
    monkeypatch.setenv("SCANLINE_API_KEY_FILE", "/absent")
    assert Settings(**explicit_settings(settings)).api_keys == []
    assert Settings(**explicit_settings(settings, keep_key=True)).api_keys == ["secret"]


def application_builder(path: str) -> Any:
    from importlib import import_module

    module, name = path.split(":")
    return getattr(import_module(module), name)


def test_pods_have_time_to_drain() -> None:
    (deployment, *_) = yaml.safe_load_all((FOLDER / "kubernetes" / "pods.yaml").read_text())
    pod = deployment["spec"]["template"]["spec"]
    drain = {one["name"]: one["value"] for one in pod["containers"][0]["env"]}
    assert pod["terminationGracePeriodSeconds"] > float(drain["SCANLINE_DRAIN_SECONDS"])
    drain_of_all = CONFIGS["rayservice.yaml"]["applications"][0]["args"]["drain_seconds"]
    for one in service_pods()[1:]:
        assert one["template"]["spec"]["terminationGracePeriodSeconds"] > drain_of_all


def test_pods_have_no_service_account_token() -> None:
    (deployment, *_) = yaml.safe_load_all((FOLDER / "kubernetes" / "pods.yaml").read_text())
    assert deployment["spec"]["template"]["spec"]["automountServiceAccountToken"] is False


def test_compose_commands_are_valid_ray_commands() -> None:
    click = pytest.importorskip("click")
    scripts = pytest.importorskip("ray.scripts.scripts", reason="Ray is not installed")
    services = COMPOSE["services"]
    told = [services[name]["command"] for name in ("scanline-head", "worker-1", "worker-2")]
    assert len(set(told)) == 2
    for command in told:
        words = shlex.split(command)
        if words[0] == "sh":  # the head node, and then the server
            words = shlex.split(words[2].partition("&&")[0])[3:]
        assert words[:2] == ["ray", "start"]
        with click.Context(scripts.start) as context:
            scripts.start.parse_args(context, words[2:])


def test_compose_variables_are_settings() -> None:
    fields = {f"SCANLINE_{name.upper()}" for name in Settings.model_fields}
    for service in COMPOSE["services"].values():
        set_here = {name for name in service["environment"] if name.startswith("SCANLINE_")}
        assert set_here
        assert set_here <= fields


@pytest.mark.skipif(shutil.which("wget") is None, reason="wget is missing")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_docker_health_check_reaches_the_server_on_any_host_and_ignores_proxies(
    host: str,
) -> None:
    """Docker passes a configured proxy to every container."""
    check = re.search(r"^HEALTHCHECK .*\\\n +CMD (.*)$", (ROOT / "Dockerfile").read_text(), re.M)
    assert check

    if host not in {one[4][0] for one in socket.getaddrinfo("localhost", None)}:
        pytest.skip(f"localhost is not {host} here")

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    class Ready(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/readyz" else 503)
            self.end_headers()

    with Server((host, 0), Ready) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = {"SCANLINE_PORT": str(server.server_port), "http_proxy": "http://127.0.0.1:1"}
        for path, code in (("readyz", 0), ("livez", 8)):
            command = check[1].replace("readyz", path)
            done = subprocess.run(command, shell=True, env=os.environ | port, check=False)
            assert done.returncode == code
        server.shutdown()


def test_kubernetes_images_have_this_version() -> None:
    """Kubernetes would pull an image without a tag from a registry, even if the node has it."""
    (deployment, *_) = yaml.safe_load_all((FOLDER / "kubernetes" / "pods.yaml").read_text())
    pods = [deployment["spec"]["template"], *(one["template"] for one in service_pods())]
    containers = [container for pod in pods for container in pod["spec"]["containers"]]
    assert len(containers) >= 3
    for container in containers:
        assert container["image"].endswith(f":{__version__}")
        assert container["imagePullPolicy"] == "IfNotPresent"
