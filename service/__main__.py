"""Entry point of ``python -m scanline.service``, which ``torchrun`` needs."""

from scanline.service.cli.main import main

main()
