"""Files for Kubernetes, Ray Serve and Docker Compose match their schemas and our settings."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
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


def objects(name: str) -> dict[str, Any]:
    """Return the objects of a Kubernetes file by kind."""
    loaded = yaml.safe_load_all((FOLDER / "kubernetes" / name).read_text())
    return {one["kind"]: one for one in loaded}


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("pods.yaml", ["Deployment", "Service", "HorizontalPodAutoscaler", "PodDisruptionBudget"]),
        ("ingress.yaml", ["Ingress", "Service"]),
        ("network.yaml", ["NetworkPolicy"]),
        ("secret.yaml", ["Secret"]),
    ],
)
def test_kubernetes_objects_match_their_schemas(name: str, kinds: list[str]) -> None:
    validation = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is missing")
    assert [*objects(name)] == kinds
    for one in objects(name).values():
        validation.validate(one, validation.latest_version(), strict=True)


def test_pods_of_a_ray_service_match_their_schema() -> None:
    validation = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is missing")
    for one in service_pods():
        validation.validate(one, validation.latest_version(), strict=True)


def test_kubernetes_objects_refer_to_each_other() -> None:
    plain = objects("pods.yaml")
    pod = plain["Deployment"]["spec"]["template"]
    labels, (container,) = pod["metadata"]["labels"], pod["spec"]["containers"]
    service = plain["Service"]
    selectors = [
        service["spec"]["selector"],
        plain["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        objects("network.yaml")["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    ]
    assert all(selector == labels for selector in selectors)
    (rule,) = objects("network.yaml")["NetworkPolicy"]["spec"]["ingress"]
    assert {one["port"] for one in rule["ports"]} == {one["name"] for one in container["ports"]}
    monitor = objects("monitoring.yaml")["ServiceMonitor"]["spec"]
    assert monitor["selector"]["matchLabels"] == service["metadata"]["labels"]
    (port,) = service["spec"]["ports"]
    assert monitor["endpoints"][0]["port"] == port["name"]
    assert monitor["endpoints"][0]["path"] == "/metrics"
    (host,) = objects("ingress.yaml")["Ingress"]["spec"]["rules"]
    backends = {one["path"]: one["backend"]["service"] for one in host["http"]["paths"]}
    assert backends["/"] == {"name": service["metadata"]["name"], "port": {"name": port["name"]}}
    for closed in ("/metrics", "/v1/models/reload"):
        assert backends[closed]["name"] == objects("ingress.yaml")["Service"]["metadata"]["name"]
    assert "selector" not in objects("ingress.yaml")["Service"]["spec"]
    (frontend,) = service_pods()[0]["template"]["spec"]["containers"]
    for one in (container, frontend):
        (keys,) = (each for each in one["env"] if each["name"] == "SCANLINE_API_KEY")
        secret, reference = objects("secret.yaml")["Secret"], keys["valueFrom"]["secretKeyRef"]
        assert reference["name"] == secret["metadata"]["name"]
        assert reference["key"] in secret["stringData"]
    (endpoint,) = objects("monitoring.yaml")["PodMonitor"]["spec"]["podMetricsEndpoints"]
    assert endpoint["path"] == "/metrics"
    assert endpoint["port"] in {one["name"] for one in frontend["ports"]}


def test_all_containers_run_without_privileges() -> None:
    pods = [objects("pods.yaml")["Deployment"]["spec"], *service_pods()]
    for pod in (one["template"]["spec"] for one in pods):
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}


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


def test_empty_arguments_count_as_left_out() -> None:
    pytest.importorskip("ray.serve", reason="Ray is not installed")
    from scanline.service.distributed.application import _settings

    empty = _settings({"api_key": "", "api_key_file": "", "weights": "", "max_json": ""})
    assert empty == Settings(cluster=True)


def test_replicas_do_not_read_the_key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may exist on the frontend's machine only, although the variable is set everywhere."""
    pytest.importorskip("ray.serve", reason="Ray is not installed")
    from scanline.service.distributed.deployment import explicit_settings

    (tmp_path / "keys").write_text("secret")
    settings = Settings(api_key_file=tmp_path / "keys", cluster=True)
    monkeypatch.setenv("SCANLINE_API_KEY_FILE", "/absent")
    assert Settings(**explicit_settings(settings)).api_keys == []
    assert Settings(**explicit_settings(settings, keep_key=True)).api_keys == ["secret"]
    # A frontend on another machine than the one that builds the application reads its own file.
    monkeypatch.setenv("SCANLINE_API_KEY_FILE", "")
    built = explicit_settings(Settings(cluster=True), keep_key=True)
    monkeypatch.setenv("SCANLINE_API_KEY_FILE", str(tmp_path / "keys"))
    assert Settings(**built).api_keys == ["secret"]


def application_builder(path: str) -> Any:
    from importlib import import_module

    module, name = path.split(":")
    return getattr(import_module(module), name)


def test_pods_have_time_to_drain() -> None:
    pod = objects("pods.yaml")["Deployment"]["spec"]["template"]["spec"]
    drain = {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}
    assert pod["terminationGracePeriodSeconds"] > float(drain["SCANLINE_DRAIN_SECONDS"])
    drain_of_all = CONFIGS["rayservice.yaml"]["applications"][0]["args"]["drain_seconds"]
    for one in service_pods()[1:]:
        assert one["template"]["spec"]["terminationGracePeriodSeconds"] > drain_of_all


def test_pods_have_no_service_account_token() -> None:
    deployment = objects("pods.yaml")["Deployment"]
    assert deployment["spec"]["template"]["spec"]["automountServiceAccountToken"] is False


def test_compose_commands_are_valid_ray_commands() -> None:
    click = pytest.importorskip("click")
    scripts = pytest.importorskip("ray.scripts.scripts", reason="Ray is not installed")
    services = COMPOSE["services"]
    commands = [services[name]["command"] for name in ("ray-head", "worker-1", "scanline-cluster")]
    for command in commands:
        words = shlex.split(command)
        if words[0] == "sh":  # a node of the cluster, and then the server
            words = shlex.split(words[2].partition("&&")[0])[3:]
        assert words[:2] == ["ray", "start"]
        with click.Context(scripts.start) as context:
            scripts.start.parse_args(context, words[2:])


def test_compose_starts_the_ray_head_first_and_stops_the_frontend_first() -> None:
    services = COMPOSE["services"]
    for name in ("worker-1", "worker-2", "scanline-cluster"):
        assert services[name]["depends_on"]["ray-head"] == {"condition": "service_healthy"}
    assert {"worker-1", "worker-2"} < services["scanline-cluster"]["depends_on"].keys()
    assert "depends_on" not in services["ray-head"]
    assert "disable" not in services["ray-head"]["healthcheck"]


def test_compose_services_are_limited_and_rotate_their_logs() -> None:
    for name, service in COMPOSE["services"].items():
        assert service["pids_limit"] > 0, name
        assert re.fullmatch(r"\$\{MEMORY_LIMIT:-\d+g\}", service["mem_limit"]), name
        assert service["cpus"] == "${CPU_LIMIT:-0}"
        assert service["logging"]["options"].keys() == {"max-size", "max-file"}
        assert service["image"].endswith(f":{__version__}")


def test_folders_of_the_image_are_the_mounted_ones() -> None:
    image = (ROOT / "Dockerfile").read_text()
    (cache,) = re.findall(r"SCANLINE_CACHE=(\S+)", image)
    assert f"--group 0 --mode 2775 {cache}" in image
    assert COMPOSE["services"]["scanline-gpu"]["volumes"] == [f"cache:{cache}"]


def test_the_image_runs_as_the_user_of_the_pods() -> None:
    """By a number, because Kubernetes cannot tell whether a name is root's."""
    (user,) = re.findall(r"^USER (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    pods = [objects("pods.yaml")["Deployment"]["spec"], *service_pods()]
    users = {one["template"]["spec"]["securityContext"]["runAsUser"] for one in pods}
    assert users == {int(user)}
    assert f"useradd --uid {user} " in (ROOT / "Dockerfile").read_text()


def test_compose_variables_are_settings() -> None:
    fields = {f"SCANLINE_{name.upper()}" for name in Settings.model_fields}
    for service in COMPOSE["services"].values():
        set_here = {name for name in service["environment"] if name.startswith("SCANLINE_")}
        assert set_here
        assert set_here <= fields


@pytest.mark.skipif(shutil.which("wget") is None, reason="wget is missing")
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize(
    "command", ["serve", "serve --port {}", "ray --port 1 && serve --port={}"], ids=str
)
def test_the_docker_health_check_finds_the_server(host: str, command: str) -> None:
    """On any host and port, whatever proxy Docker passes to the container."""
    if host not in {one[4][0] for one in socket.getaddrinfo("localhost", None)}:
        pytest.skip(f"localhost is not {host} here")

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    status = 200

    class Ready(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/readyz" else 404)
            self.end_headers()

    # The first process of a container is tini, with the command as its arguments.
    wait = [sys.executable, "-c", "input()"]
    with Server((host, 0), Ready) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        arguments = command.format(server.server_port)
        port = 1 if "{}" in command else server.server_port  # the command's port comes first
        environment = os.environ | {"SCANLINE_PORT": str(port), "http_proxy": "http://127.0.0.1:1"}
        with subprocess.Popen([*wait, *arguments.split()], stdin=subprocess.PIPE) as first:
            check = ["sh", str(ROOT / "service" / "monitoring" / "healthcheck.sh"), str(first.pid)]
            for status, code in ((200, 0), (503, 8)):  # noqa: B007 - the server uses it
                assert subprocess.run(check, env=environment, check=False).returncode == code
            first.kill()
        server.shutdown()


def test_kubernetes_images_have_this_version() -> None:
    """Kubernetes would pull an image without a tag from a registry, even if the node has it."""
    deployment = objects("pods.yaml")["Deployment"]
    pods = [deployment["spec"]["template"], *(one["template"] for one in service_pods())]
    containers = [container for pod in pods for container in pod["spec"]["containers"]]
    assert len(containers) >= 3
    for container in containers:
        assert container["image"].endswith(f":{__version__}")
        assert container["imagePullPolicy"] == "IfNotPresent"
