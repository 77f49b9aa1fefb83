"""``python -m scanline.service`` is ``scanline``: what ``torchrun`` starts."""

from scanline.service.commands.cli import main

main()
