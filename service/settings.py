"""Settings, from ``SCANLINE_*`` variables and the command line, checked before anything starts."""

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
from scanline.service.engine.queue import QueueLimits
from scanline.service.http.protocol.connection_limiter import ConnectionLimits

# Read elsewhere: where data sets are, and how the native decoder is built and kept.
OTHER_VARIABLES = ("data_dir", "cache", "cxxflags")
# Kubernetes tells every pod of a service named scanline, or scanline-…, where it is.
_SERVICE_LINK = re.compile(
    r"(\w+_)?(service_host|service_port(_\w+)?|port_\d+_(tcp|udp)(_(proto|port|addr))?)"
)
# As Content-Security-Policy has them, in whose header they stand: ASCII, and nothing that ends one.
_ANCESTOR = re.compile(r"'(self|none)'|[^\x00-\x20;,'\x7f-\U0010ffff]+")
# What browsers send: a scheme, a host and a port, and nothing behind them.
_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/\s]+")
_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)+")
_OF_A_CLUSTER = {
    "min_replicas", "max_replicas", "max_replicas_per_node", "replica_images", "replica_cpus",
    "replica_gpus", "scale_up_seconds", "scale_down_seconds",
}  # fmt: skip


def _is_link(value: object) -> bool:
    return isinstance(value, str) and value.startswith(("tcp://", "udp://"))


class Settings(BaseSettings):
    """How a server runs; every field is an environment variable ``SCANLINE_<FIELD>`` too."""

    model_config = SettingsConfigDict(env_prefix="SCANLINE_", extra="forbid")

    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    root_path: Annotated[
        str, Field(description="Path below which a proxy serves this, and which it takes away.")
    ] = ""
    weights: Annotated[Path, Field(description="Folder of checkpoints, each a model.")] = (
        SHIPPED_WEIGHTS
    )
    models: Annotated[
        tuple[str, ...],
        NoDecode,
        Field(
            description="Serve these models only, the first being the default (comma-separated)."
        ),
    ] = ()
    backend: Literal["auto", "reference", "native", "triton"] = "auto"
    slots: Annotated[int, Field(ge=1, le=65536, description="Images drawn at once, a model.")] = 64
    threads: Annotated[
        int | None, Field(ge=1, description="CPU threads a model uses; all cores if left out.")
    ] = None
    max_images: Annotated[int, Field(ge=1, description="Images one request may ask for.")] = 256
    max_waiting: Annotated[int, Field(ge=1, description="Images that may wait, a model.")] = 4096
    max_upload: Annotated[int, Field(ge=1024, description="Bytes of a form, pictures and all.")] = (
        10_000_000
    )
    max_json: Annotated[
        int | None,
        Field(
            ge=1024,
            description="Bytes of a body that is no form; if left out, 64 KiB and what the values "
            "of the largest model take.",
        ),
    ] = None
    max_headers: Annotated[
        int, Field(ge=1024, description="Bytes of a request's first line and headers.")
    ] = 32_768
    max_connections: Annotated[int, Field(ge=1, description="Clients connected at once.")] = 2000
    header_seconds: Annotated[
        float, Field(gt=0, description="A request's headers must have come within this time.")
    ] = 10.0
    body_seconds: Annotated[float, Field(gt=0, description="And its body within this.")] = 60.0
    send_seconds: Annotated[
        float, Field(gt=0, description="A client that reads nothing for this long is cut off.")
    ] = 30.0
    keep_alive_seconds: Annotated[
        float, Field(gt=0, description="A connection may be idle between requests for this long.")
    ] = 65.0  # longer than load balancers are, or they would send into a closing connection
    keep_finished: Annotated[
        int, Field(ge=0, description="Finished images kept for replay, a model.")
    ] = 4096
    keep_seconds: Annotated[float, Field(ge=0)] = 300.0
    grace_seconds: Annotated[
        float, Field(ge=0, description="A dropped stream may be resumed for this long.")
    ] = 5.0
    drain_seconds: Annotated[
        float,
        Field(ge=0, le=86_400, description="What runs may take so long to finish after SIGTERM."),
    ] = 30.0
    api_key: Annotated[
        SecretStr | None,
        Field(
            description="If set, /v1 wants it, or one of several (comma-separated), as a bearer "
            "token."
        ),
    ] = None
    max_images_per_caller: Annotated[
        int | None,
        Field(
            ge=1,
            description="Images that one API key, or without keys one address, may have "
            "waiting or drawn at once.",
        ),
    ] = None
    trusted_proxies: Annotated[
        tuple[str, ...],
        NoDecode,
        Field(
            description="Addresses or networks of proxies whose X-Forwarded-For is believed "
            "(comma-separated; * for any)."
        ),
    ] = ()
    cors_origins: Annotated[
        tuple[str, ...],
        NoDecode,
        Field(description="Origins whose pages may call the API (comma-separated; * for any)."),
    ] = ()
    frame_ancestors: Annotated[
        tuple[str, ...],
        NoDecode,
        Field(description="Origins whose pages may show this one in a frame (comma-separated)."),
    ] = ()
    cluster: Annotated[
        bool,
        Field(description="Draw on replicas in the Ray cluster of RAY_ADDRESS, or one begun here."),
    ] = False
    min_replicas: Annotated[int, Field(ge=1, description="Of each model, in a cluster.")] = 1
    max_replicas: Annotated[int, Field(ge=1, description="Of each model, in a cluster.")] = 1
    max_replicas_per_node: Annotated[
        int | None,
        Field(ge=1, le=100, description="Of each model, on one machine; any number if left out."),
    ] = None
    replica_images: Annotated[
        int | None,
        Field(
            ge=1,
            description="Images, waiting and running, for which another replica is begun; its "
            "slots if left out.",
        ),
    ] = None
    replica_cpus: Annotated[
        float, Field(gt=0, description="CPU cores of a replica; its threads, if it has no GPU.")
    ] = 1.0
    replica_gpus: Annotated[float, Field(ge=0, description="GPUs of a replica, or a share.")] = 0.0
    scale_up_seconds: Annotated[
        float, Field(ge=0, description="So long more replicas are wanted before they are begun.")
    ] = 5.0
    scale_down_seconds: Annotated[
        float, Field(ge=0, description="So long fewer are wanted before some are ended.")
    ] = 60.0
    log_format: Literal["text", "json"] = "text"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @model_validator(mode="before")
    @classmethod
    def _none_misspelt(cls, values: object) -> object:
        known = [*cls.model_fields, *OTHER_VARIABLES]
        for variable, value in os.environ.items():
            name = variable.upper().removeprefix("SCANLINE_").lower()
            link = _SERVICE_LINK.fullmatch(name) or (name.endswith("_port") and _is_link(value))
            if variable.lower() == name or name in known or link:
                continue
            near = difflib.get_close_matches(name, known, 1)
            hint = (
                f"did you mean SCANLINE_{near[0].upper()}?"
                if near
                else "docs/operations.md lists those there are"
            )
            raise ValueError(f"{variable.upper()} is no setting; {hint}")
        return values

    @field_validator("port", mode="before")
    @classmethod
    def _not_a_link(cls, value: object) -> object:
        return cls.model_fields["port"].default if _is_link(value) else value

    @field_validator("weights", mode="before")
    @classmethod
    def _named(cls, value: object) -> object:
        if value == "":
            raise ValueError("is empty: name a folder, or unset it")  # it would be this one
        return value

    @field_validator("models", "cors_origins", "frame_ancestors", "trusted_proxies", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("root_path")
    @classmethod
    def _path(cls, value: str) -> str:
        path = value.rstrip("/")
        if path and not _PATH.fullmatch(path):
            raise ValueError(f"{value!r} is no path, as /pictures is")
        return path

    @field_validator("cors_origins", "frame_ancestors")
    @classmethod
    def _origins(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        known = _ORIGIN if info.field_name == "cors_origins" else _ANCESTOR
        for one in value:
            if not known.fullmatch(one):
                raise ValueError(f"{one!r} is no origin, as https://pages.example:8443 is, or *")
        return value

    @field_validator("api_key")
    @classmethod
    def _not_blank(cls, value: SecretStr | None) -> SecretStr | None:
        # Compose passes an unset variable on as an empty one; blanks are a mistake.
        if value is None or not value.get_secret_value():
            return None
        if not all(key.strip() for key in value.get_secret_value().split(",")):
            raise ValueError("is blank, or one of several is: unset it, or give a key")
        return value

    @field_validator("trusted_proxies")
    @classmethod
    def _networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for one in value:
            if one != "*":
                ip_network(one)
        return ("*",) if "*" in value else value  # which uvicorn takes alone

    @model_validator(mode="after")
    def _room_for_one(self) -> Settings:
        if self.max_waiting < self.max_images:
            raise ValueError(
                f"max_waiting {self.max_waiting} must be at least max_images {self.max_images}, "
                "or the largest request allowed could never be queued"
            )
        if self.max_images_per_caller is not None and self.max_images_per_caller < self.max_images:
            raise ValueError(
                f"max_images_per_caller {self.max_images_per_caller} must be at least max_images "
                f"{self.max_images}, or the largest request allowed would always be refused"
            )
        if 0 < self.keep_finished < self.max_images:
            raise ValueError(
                f"keep_finished {self.keep_finished} must be at least max_images "
                f"{self.max_images}, or the largest request allowed could never be read again; 0 "
                "keeps none"
            )
        return self

    @model_validator(mode="after")
    def _replicas_of_a_cluster(self) -> Settings:
        alone = sorted(_OF_A_CLUSTER & self.model_fields_set)
        if alone and not self.cluster:
            names = ", ".join(f"SCANLINE_{name.upper()}" for name in alone)
            raise ValueError(
                f"{names}: only with SCANLINE_CLUSTER=true (--cluster), which draws on replicas"
            )
        if self.max_replicas < self.min_replicas:
            raise ValueError(
                f"max_replicas {self.max_replicas} must be at least min_replicas "
                f"{self.min_replicas}"
            )
        return self

    @property
    def hosts(self) -> list[str]:
        """The addresses to listen on."""
        return [host.strip() for host in self.host.split(",") if host.strip()]

    @property
    def api_keys(self) -> list[str]:
        """The keys, any of which is taken; none where none is wanted."""
        keys = "" if self.api_key is None else self.api_key.get_secret_value()
        return [key.strip() for key in keys.split(",")] if keys else []

    @property
    def connection_limits(self) -> ConnectionLimits:
        """The connections' share of the settings."""
        return ConnectionLimits(
            header_bytes=self.max_headers,
            header_seconds=self.header_seconds,
            body_seconds=self.body_seconds,
            send_seconds=self.send_seconds,
            connections=self.max_connections,
        )

    @property
    def limits(self) -> QueueLimits:
        """The engine's share of the settings."""
        return QueueLimits(
            max_waiting=self.max_waiting,
            keep_finished=self.keep_finished,
            keep_seconds=self.keep_seconds,
            grace=self.grace_seconds,
        )
