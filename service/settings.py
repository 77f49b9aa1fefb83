"""Settings, from ``SCANLINE_*`` variables and the command line, checked before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from scanline.model.checkpoint import SHIPPED
from scanline.service.queue import Limits


class Settings(BaseSettings):
    """How a server runs; every field is an environment variable ``SCANLINE_<FIELD>`` too."""

    model_config = SettingsConfigDict(env_prefix="SCANLINE_", extra="ignore")

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    weights: Annotated[Path, Field(description="Folder of checkpoints, each a model.")] = SHIPPED
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
    max_upload: Annotated[int, Field(ge=1024, description="Bytes of a request body.")] = 10_000_000
    keep_finished: Annotated[
        int, Field(ge=0, description="Finished images kept for replay, a model.")
    ] = 4096
    keep_seconds: Annotated[float, Field(ge=0)] = 300.0
    grace_seconds: Annotated[
        float, Field(ge=0, description="A dropped stream may be resumed for this long.")
    ] = 5.0
    drain_seconds: Annotated[
        float, Field(ge=0, description="After SIGTERM, what runs may take this long to finish.")
    ] = 30.0
    api_key: Annotated[
        SecretStr | None, Field(description="If set, /v1 wants it as a bearer token.")
    ] = None
    cors_origins: Annotated[
        tuple[str, ...],
        NoDecode,
        Field(description="Origins whose pages may call the API (comma-separated; * for any)."),
    ] = ()
    log_format: Literal["text", "json"] = "text"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @field_validator("models", "cors_origins", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("api_key")
    @classmethod
    def _not_blank(cls, value: SecretStr | None) -> SecretStr | None:
        # Compose passes an unset variable on as an empty one; blanks are a mistake.
        if value is None or not value.get_secret_value():
            return None
        if not value.get_secret_value().strip():
            raise ValueError("is blank: unset it, or give a key")
        return value

    @model_validator(mode="after")
    def _room_for_one(self) -> Settings:
        if self.max_waiting < self.max_images:
            raise ValueError(
                f"max_waiting {self.max_waiting} must be at least max_images {self.max_images}, "
                "or the largest request allowed could never be queued"
            )
        return self

    @property
    def limits(self) -> Limits:
        """The engine's share of the settings."""
        return Limits(
            max_waiting=self.max_waiting,
            keep_finished=self.keep_finished,
            keep_seconds=self.keep_seconds,
            grace=self.grace_seconds,
        )
