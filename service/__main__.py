"""``python -m scanline.service`` is ``scanline``: what ``torchrun`` starts."""

from scanline.service.cli.main import main

main()
