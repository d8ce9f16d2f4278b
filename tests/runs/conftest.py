"""Rule for the tests of runs: a process that a test starts imports the checkout, wherever it works."""

import pytest

from dpbook.core import checkout


@pytest.fixture(autouse=True, scope="module")
def python_path():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(checkout.root()))
        yield
