"""The process of a kit: the server's or a site's, kept running until it is stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from fewrounds.checks import check_labels, check_problem, example_of
from fewrounds.data.shards import signature
from fewrounds.data.sources import Cast, load_workers
from fewrounds.draws import Draws
from fewrounds.silo.provision import ORGANISATION, settle_here
from fewrounds.silo.site import load_definition, test_source

SOON = 5.0
"""A process that ends within so many seconds of its start is not started again at once."""


def start(kit: Path, say: Callable[[str], None], seconds: float | None = None) -> int:
    """Run the kit's process in the foreground, again whenever it ends by a fault; Ctrl-C or SIGTERM ends it."""
    settle_here(kit)
    if is_site(kit):
        say(check_site(kit))
    stopped = False
    process: subprocess.Popen[bytes] | None = None

    def stop(number: int, frame: object) -> None:
        nonlocal stopped
        stopped = True
        if process is not None:
            process.terminate()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    while not stopped:
        began = time.monotonic()
        process = subprocess.Popen(command(kit), env=environment(kit), stdin=subprocess.DEVNULL)
        code = process.wait()
        if stopped or code == 0:
            break
        say(f"the process ended with code {code}; starting it again")
        if time.monotonic() - began < SOON:
            time.sleep(SOON)
    return 0


def is_site(kit: Path) -> bool:
    return (kit / "startup" / "fed_client.json").is_file()


def name_of(kit: Path) -> str:
    """The name in the kit's certificate: the folder may have been renamed."""
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    certificate = kit / "startup" / ("client.crt" if is_site(kit) else "server.crt")
    found = x509.load_pem_x509_certificate(certificate.read_bytes()).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value)


def command(kit: Path) -> list[str]:
    role = "client" if is_site(kit) else "server"
    settings = ["secure_train=true", f"org={ORGANISATION}", "config_folder=config"]
    if role == "client":
        settings.append(f"uid={name_of(kit)}")
    module = f"nvflare.private.fed.app.{role}.{role}_train"
    return [sys.executable, "-u", "-m", module, "-m", str(kit.resolve()), "-s", f"fed_{role}.json", "--set", *settings]


def environment(kit: Path) -> dict[str, str]:
    (kit / "transfer").mkdir(exist_ok=True)
    # glibc keeps an arena for each of FLARE's many threads otherwise.
    return {**os.environ, "MALLOC_ARENA_MAX": "4"}


def check_site(kit: Path) -> str:
    """Try what the site's file says before anybody depends on it. Returns a line about it."""
    definition = load_definition(kit / "site.py")
    problem = definition.problem
    cast = Cast(problem.dtype, problem.device, problem.has_model)
    sources, _ = load_workers([definition.data], cast, evaluation_rng=lambda p: Draws(0).generator("evaluation", 0, p))
    example = example_of([sources[0]])
    check_labels(problem, sources, test_source(definition, cast, example), example, problem.start)
    check_problem(problem, example, problem.start)
    size = sources[0].size
    count = f"{int(size)} samples" if size != float("inf") else "a stream of samples"
    return f"{name_of(kit)}: {count} of {signature(example)}, a problem of {problem.dim} numbers"
