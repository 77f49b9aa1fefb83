"""Settings of a server, from ``SCANLINE_*`` variables and the command line."""

from __future__ import annotations

import difflib
import os
import re
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from scanline.model.checkpoint import SHIPPED_WEIGHTS
from scanline.service.api_key_file import read_api_keys
from scanline.service.engine.queue_limits import QueueLimits
from scanline.service.http.protocol.connection_limiter import ConnectionLimits

# Variables that other modules read: the data sets' folder, and the native decoder's build.
OTHER_VARIABLES = ("data_dir", "cache", "cxxflags", "isa")
# Variables that Kubernetes sets in every pod if a service is named scanline or scanline-….
_SERVICE_LINK = re.compile(
    r"(\w+_)?(service_host|service_port(_\w+)?|port_\d+_(tcp|udp)(_(proto|port|addr))?)"
)
# A source of a Content-Security-Policy: ASCII without separators.
_FRAME_ANCESTOR = re.compile(r"'(self|none)'|[^\x00-\x20;,'\x7f-\U0010ffff]+")
# An origin as browsers send it: scheme, host and port only.
_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/\s]+")
_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)+")
# Settings that need ``cluster``.
CLUSTER_SETTINGS = {
    "min_replicas", "max_replicas", "max_replicas_per_node", "replica_images", "replica_cpus",
    "replica_gpus", "scale_up_seconds", "scale_down_seconds",
}  # fmt: skip
# Settings for which replicas must start again. The frontend uses the others. Replicas take the
# format and level of their logs when they start.
REPLICA_SETTINGS = CLUSTER_SETTINGS | {"backend", "slots", "threads"}
# Settings without effect in Ray Serve's own application, whose proxy listens instead of Scanline.
LISTENER_SETTINGS = {
    "host", "port", "max_connections", "max_headers", "header_seconds", "body_seconds",
    "send_seconds", "keep_alive_seconds", "root_path",
}  # fmt: skip


def _is_service_link(value: object) -> bool:
    return isinstance(value, str) and value.startswith(("tcp://", "udp://"))


# A duration, at most a year: an infinite one would end the thread that waits for it.
_Seconds = Annotated[float, Field(le=365 * 86_400)]


class Settings(BaseSettings):
    """Settings of a server. Each field is also an environment variable ``SCANLINE_<FIELD>``.

    Attributes:
        root_path: Path prefix that a proxy removes before it forwards a request.
        weights: Folder of checkpoints, one per model.
        models: Serve only these models, the default first (comma-separated).
        watch_seconds: Seconds between checks of the weights folder for changed models; 0 checks
            only at POST /v1/models/reload.
        slots: Slots per model: an image takes one, two with guidance.
        threads: CPU threads per model; default: all cores.
        max_images: Maximum images per request.
        max_waiting: Maximum waiting images per model.
        max_upload: Maximum bytes of a form with its files.
        max_json: Maximum bytes of a body that is not a form; default: 64 KiB, and 6 bytes for
            each value of the largest model's image.
        max_headers: Maximum bytes of a request's first line and headers.
        max_connections: Maximum connections.
        header_seconds: Timeout for a request's headers.
        body_seconds: Timeout for a request's body.
        send_seconds: Timeout of a client that does not read its reply.
        keep_alive_seconds: Timeout of a connection between requests.
        keep_finished: Finished images kept for replay per model.
        keep_seconds: Seconds for which finished images are kept.
        grace_seconds: Seconds in which a dropped stream may be resumed.
        drain_seconds: Time for running images to finish after SIGTERM.
        api_key: Bearer token that /v1 requires; several may be given (comma-separated).
        api_key_file: File with the API keys, separated by lines or commas.
        max_images_per_caller: Maximum waiting and running images per API key, or per client
            address without keys.
        pixels_per_minute: Quota of pixels per minute and API key, or per client address without
            keys.
        trusted_proxies: Addresses or networks of proxies whose X-Forwarded-For is trusted
            (comma-separated; * for any).
        cors_origins: Origins whose pages may call the API (comma-separated; * for any).
        frame_ancestors: Origins whose pages may embed the page in a frame (comma-separated).
        cluster: Draw on replicas in the Ray cluster at RAY_ADDRESS, or in a new local one.
        min_replicas: Minimum replicas per model.
        max_replicas: Maximum replicas per model.
        max_replicas_per_node: Maximum replicas per model and machine; default: any number.
        replica_images: Waiting and running images per replica, above which another replica is
            started; default: its slots.
        replica_cpus: CPU cores per replica, and its threads if it has no GPU.
        replica_gpus: GPUs per replica; fractions share one.
        scale_up_seconds: Delay before more replicas are started.
        scale_down_seconds: Delay before idle replicas are stopped.
        png_metadata: Store the recipe (model, seed and options) in each PNG.
    """

    # An empty variable counts as unset, as Docker Compose passes on an unset one.
    model_config = SettingsConfigDict(
        env_prefix="SCANLINE_", extra="forbid", allow_inf_nan=False, env_ignore_empty=True
    )

    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    root_path: str = ""
    weights: Path = SHIPPED_WEIGHTS
    models: Annotated[tuple[str, ...], NoDecode] = ()
    watch_seconds: Annotated[_Seconds, Field(ge=0)] = 2.0
    backend: Literal["auto", "reference", "native", "triton"] = "auto"
    slots: Annotated[int, Field(ge=1, le=65_536)] = 64
    threads: Annotated[int | None, Field(ge=1)] = None
    max_images: Annotated[int, Field(ge=1)] = 256
    max_waiting: Annotated[int, Field(ge=1)] = 4096
    max_upload: Annotated[int, Field(ge=1024)] = 10_000_000
    max_json: Annotated[int | None, Field(ge=1024)] = None
    max_headers: Annotated[int, Field(ge=1024)] = 32_768
    max_connections: Annotated[int, Field(ge=1)] = 2000
    header_seconds: Annotated[_Seconds, Field(gt=0)] = 10.0
    body_seconds: Annotated[_Seconds, Field(gt=0)] = 60.0
    send_seconds: Annotated[_Seconds, Field(gt=0)] = 30.0
    # Longer than load balancers' own, which would otherwise use a closing connection.
    keep_alive_seconds: Annotated[_Seconds, Field(gt=0)] = 65.0
    keep_finished: Annotated[int, Field(ge=0)] = 4096
    keep_seconds: Annotated[_Seconds, Field(ge=0)] = 300.0
    grace_seconds: Annotated[_Seconds, Field(ge=0)] = 15.0
    drain_seconds: Annotated[float, Field(ge=0, le=86_400)] = 30.0
    api_key: SecretStr | None = None
    api_key_file: Path | None = None
    max_images_per_caller: Annotated[int | None, Field(ge=1)] = None
    pixels_per_minute: Annotated[int | None, Field(ge=1)] = None
    trusted_proxies: Annotated[tuple[str, ...], NoDecode] = ()
    cors_origins: Annotated[tuple[str, ...], NoDecode] = ()
    frame_ancestors: Annotated[tuple[str, ...], NoDecode] = ()
    cluster: bool = False
    min_replicas: Annotated[int, Field(ge=1)] = 1
    max_replicas: Annotated[int, Field(ge=1)] = 1
    max_replicas_per_node: Annotated[int | None, Field(ge=1, le=100)] = None
    replica_images: Annotated[int | None, Field(ge=1)] = None
    replica_cpus: Annotated[float, Field(gt=0)] = 1.0
    replica_gpus: Annotated[float, Field(ge=0)] = 0.0
    scale_up_seconds: Annotated[_Seconds, Field(ge=0)] = 5.0
    scale_down_seconds: Annotated[_Seconds, Field(ge=0)] = 60.0
    png_metadata: bool = True
    log_format: Literal["text", "json"] = "text"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @model_validator(mode="before")
    @classmethod
    def _reject_unknown_variables(cls, values: object) -> object:
        known = [*cls.model_fields, *OTHER_VARIABLES]
        for variable, value in os.environ.items():
            name = variable.upper().removeprefix("SCANLINE_").lower()
            is_link = _SERVICE_LINK.fullmatch(name) or (
                name.endswith("_port") and _is_service_link(value)
            )
            if variable.lower() == name or name in known or is_link:
                continue
            near = difflib.get_close_matches(name, known, 1)
            hint = (
                f"did you mean SCANLINE_{near[0].upper()}?"
                if near
                else "docs/operations.md lists all settings"
            )
            raise ValueError(f"{variable.upper()} is not a setting; {hint}")
        return values

    @field_validator("port", mode="before")
    @classmethod
    def _ignore_service_link(cls, value: object) -> object:
        return cls.model_fields["port"].default if _is_service_link(value) else value

    @field_validator("models", "cors_origins", "frame_ancestors", "trusted_proxies", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("root_path")
    @classmethod
    def _normalize_root_path(cls, value: str) -> str:
        path = value.rstrip("/")
        if path and not _PATH.fullmatch(path):
            raise ValueError(f"{value!r} is not a path such as /pictures")
        return path

    @field_validator("cors_origins", "frame_ancestors")
    @classmethod
    def _check_origins(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        pattern = _ORIGIN if info.field_name == "cors_origins" else _FRAME_ANCESTOR
        for one in value:
            if not pattern.fullmatch(one):
                raise ValueError(
                    f"{one!r} is not * or an origin such as https://pages.example:8443"
                )
        return value

    @field_validator("api_key")
    @classmethod
    def _not_blank(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not all(
            key.strip() for key in value.get_secret_value().split(",")
        ):
            raise ValueError("contains a blank key: unset it, or give a key")
        return value

    @model_validator(mode="after")
    def _read_api_keys(self) -> Settings:
        """Take the API keys from their file; fail if it has none, so that nothing is left open."""
        if self.api_key_file is None:
            return self
        if self.api_key is not None:
            raise ValueError("set SCANLINE_API_KEY or SCANLINE_API_KEY_FILE, not both")
        try:
            keys = read_api_keys(self.api_key_file)
        except ValueError as error:
            raise ValueError(f"SCANLINE_API_KEY_FILE: {self.api_key_file} {error}") from error
        self.api_key = SecretStr(",".join(keys))
        return self

    @field_validator("trusted_proxies")
    @classmethod
    def _check_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for one in value:
            if one != "*":
                ip_network(one)
        return ("*",) if "*" in value else value  # uvicorn accepts "*" only alone

    @model_validator(mode="after")
    def _fit_largest_request(self) -> Settings:
        if self.max_waiting < self.max_images:
            raise ValueError(
                f"max_waiting {self.max_waiting} must be at least max_images {self.max_images}, "
                "so that the largest allowed request fits the queue"
            )
        if self.max_images_per_caller is not None and self.max_images_per_caller < self.max_images:
            raise ValueError(
                f"max_images_per_caller {self.max_images_per_caller} must be at least max_images "
                f"{self.max_images}, so that the largest allowed request is not always refused"
            )
        if 0 < self.keep_finished < self.max_images:
            raise ValueError(
                f"keep_finished {self.keep_finished} must be at least max_images "
                f"{self.max_images}, or 0, so that the largest allowed request can be read again"
            )
        return self

    @model_validator(mode="after")
    def _check_cluster_settings(self) -> Settings:
        alone = sorted(CLUSTER_SETTINGS & self.model_fields_set)
        if alone and not self.cluster:
            names = ", ".join(f"SCANLINE_{name.upper()}" for name in alone)
            raise ValueError(f"{names}: allowed only with SCANLINE_CLUSTER=true (--cluster)")
        if self.max_replicas < self.min_replicas:
            raise ValueError(
                f"max_replicas {self.max_replicas} must be at least min_replicas "
                f"{self.min_replicas}"
            )
        return self

    @property
    def hosts(self) -> list[str]:
        """Addresses to listen on."""
        return [host.strip() for host in self.host.split(",") if host.strip()]

    @property
    def api_keys(self) -> list[str]:
        """The valid API keys; none if no key is required."""
        keys = "" if self.api_key is None else self.api_key.get_secret_value()
        return [key.strip() for key in keys.split(",")] if keys else []

    @property
    def watches_weights(self) -> bool:
        """True if changed models are reloaded automatically; the shipped folder never changes."""
        return self.watch_seconds > 0 and self.weights != SHIPPED_WEIGHTS and not self.cluster

    @property
    def connection_limits(self) -> ConnectionLimits:
        """Limits of connections."""
        return ConnectionLimits(
            header_bytes=self.max_headers,
            header_seconds=self.header_seconds,
            body_seconds=self.body_seconds,
            send_seconds=self.send_seconds,
            connections=self.max_connections,
        )

    @property
    def queue_limits(self) -> QueueLimits:
        """Limits of each engine's queue."""
        return QueueLimits(
            max_waiting=self.max_waiting,
            keep_finished=self.keep_finished,
            keep_seconds=self.keep_seconds,
            grace=self.grace_seconds,
        )
