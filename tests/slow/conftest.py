from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """A server and three sites, started once; a test that stops one starts it again."""
    from federation import Federation

    found = Federation(tmp_path_factory.mktemp("federation"))
    try:
        found.start()
        yield found
    finally:
        found.stop()
