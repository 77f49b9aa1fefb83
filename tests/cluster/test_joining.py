"""Joining a Ray cluster: whoever listens nowhere is told of soon, and in words."""

from __future__ import annotations

import socket

import pytest

from tests.processes import free_port

pytest.importorskip("ray.serve", reason="Ray is not installed")

from scanline.service.cluster.deploying import wait_listening


def test_an_address_where_nothing_listens_is_told_of() -> None:
    port = free_port()
    with pytest.raises(ConnectionError, match=rf"nothing answers at 127\.0\.0\.1:{port} \(.*refus"):
        wait_listening(f"127.0.0.1:{port}", 0)
    with pytest.raises(ConnectionError, match=r"nothing answers at no\.such\.host\.invalid:1 "):
        wait_listening("no.such.host.invalid:1", 0)


def test_one_that_listens_is_joined_and_ray_finds_its_own() -> None:
    with socket.create_server(("127.0.0.1", 0)) as head:
        wait_listening(f"127.0.0.1:{head.getsockname()[1]}", 0)
    for address in ("auto", "local", "ray://127.0.0.1:1"):
        wait_listening(address, 0)
