"""Rules for all tests: a busy machine fails none, no option reaches a child's run; skipped tests are reported."""

import gc
import os
import pickle
import signal

# Several processes test at once, and the sums are small: threads of their own would only spin.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings

# The same examples in every run, and few: a change fails for its own sake only. `make proof` draws new ones, and more.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("searching", PATIENT)
settings.register_profile("repeatable", PATIENT, derandomize=True, max_examples=40)
settings.load_profile("repeatable")

# A run that was started in the background is deaf to interrupts, and so would be what it tests.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# One under nohup outlives its terminal; what it tests has to hear that one is gone. No program inherits a handler.
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda number, frame: None)

# This run has read it. A run that a test starts is asked for by that test alone.
os.environ.pop("PYTEST_ADDOPTS", None)

NO_CHROMIUM = "there is no Chromium here"
INSTALL = """Install Chromium to run them:
  Debian, Ubuntu   sudo apt install chromium
  Fedora           sudo dnf install chromium
  macOS            brew install --cask chromium"""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection():
    """Keep all that is imported and collected out of garbage collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(items):
    """The tests in a browser come first: one worker gets them all, and they take longer than anything else."""
    items.sort(key=lambda item: not item.nodeid.startswith("tests/browser/"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """One worker gets all tests in a browser, so that one JupyterLab and one Chromium are started for them."""
    from xdist.scheduler import LoadScopeScheduling

    class OneBrowser(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return "tests/browser" if nodeid.startswith("tests/browser/") else super()._split_scope(nodeid)

    return OneBrowser(config, log) if config.getoption("dist") == "loadscope" else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session):
    """Report the tests that were skipped for lack of a browser after everything else, with advice."""
    result = yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter else []
    if number := sum(NO_CHROMIUM in str(report.longrepr) for report in skipped):
        reporter.write_line(f"\n{number} tests in a browser were skipped: {NO_CHROMIUM}. {INSTALL}")
    return result


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The book's pages, built once for all processes that test, by who comes first; nobody changes them."""
    from dpbook.app.site import build
    from dpbook.core import checkout

    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    stored = shared / "book.pickle"
    with FileLock(shared / "book.lock"):
        if not stored.exists():
            stored.write_bytes(pickle.dumps(build(checkout.root(), shared / "book")))
    return pickle.loads(stored.read_bytes())
