"""The browser of these files, which starts once."""

import pytest

from tests.studio import browsing


@pytest.fixture(scope="package")
def browser():
    """A browser for this package. Playwright runs an event loop, which tests of other packages must not share."""
    with browsing() as browser:
        yield browser


@pytest.fixture(scope="package")
def studio(bundled_server):
    return bundled_server
