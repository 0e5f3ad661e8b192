"""Run by torchrun: the command, with something wrong on rank 1 alone. `a_bad_rank.py WHAT run FILE …`."""

from __future__ import annotations

import os
import sys

from fewrounds.cli import main
from fewrounds.errors import DataError, ProblemError

what = sys.argv.pop(1)
if os.environ["RANK"] == "1" and what == "data":
    from fewrounds.data import catalog

    def load(*arguments: object, **options: object) -> None:
        raise DataError("digits is not on this machine")

    catalog.load = load
if os.environ["RANK"] == "1" and what == "round 2":
    from fewrounds.engine.host import Host

    usual = Host.run

    def run(self: Host, *arguments: object) -> object:
        if self.round == 2:
            raise ProblemError("the loss cannot be computed here")
        return usual(self, *arguments)

    Host.run = run
main()
