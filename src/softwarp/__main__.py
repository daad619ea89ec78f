"""python -m softwarp: the command line, for torchrun."""

from softwarp.cli import main

main()
