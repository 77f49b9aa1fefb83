"""``python -m service`` is ``scanline``: what ``torchrun`` starts."""

from service.cli import main

main()
