"""A JupyterLab server of its own, and one notebook in a browser page: what the browser tests are written with."""

import contextlib
import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from playwright.sync_api import Locator, Page, expect

from dpbook.app.lab import jupyter, workbook
from dpbook.app.notebooks.validation import FIXED
from dpbook.core import checkout
from dpbook.ranks import held_port

SECONDS = 240  # for anything that waits: a shared machine may be slow
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
OPEN = "path => window.jupyterapp.commands.execute('docmanager:open', {path}).then(() => null)"
CLOSE = "() => [...window.jupyterapp.shell.widgets('main')].forEach(widget => widget.dispose())"
# Off-screen cells are in the page only without windowing.
SETTINGS = {"@jupyterlab/notebook-extension/tracker.jupyterlab-settings": {"windowingMode": "none"}}


@dataclass
class Server:
    """A running JupyterLab: ``directory`` is the reader's copy it serves."""

    directory: Path
    url: str
    token: str

    def api(self, path, method="GET"):
        """The JSON that the server's REST API returns for ``path``, such as ``"kernels"``; None if that is empty."""
        headers = {"Authorization": f"token {self.token}"}
        request = urllib.request.Request(f"{self.url}api/{path}", headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return json.loads(answer.read() or "null")


@contextlib.contextmanager
def serve(folder):
    """Start JupyterLab as ``dpbook lab`` does, on its own copy below ``folder``; stop it by its process id."""
    directory = folder / "workbook"
    directory.mkdir()
    if checkout.chapters():
        workbook.refresh(checkout.root(), directory)
    env = jupyter.environment(os.environ) | FIXED | _private(folder)
    log = folder / "jupyterlab.log"
    with held_port() as port, log.open("wb") as output:
        command = jupyter.server_command(directory, port=port, browser=False, allow_root=os.geteuid() == 0)
        command.append("--LabApp.expose_app_in_browser=True")  # for `OPEN` and `CLOSE`
        process = subprocess.Popen(command, env=env, stdout=output, stderr=output, start_new_session=True)
        try:
            yield _wait_until_it_answers(process, folder / "runtime", directory, log)
        finally:
            _stop(process)


def _private(folder):
    """No configuration, kernel, history or workspace of this machine's user is read or written."""
    for name, content in SETTINGS.items():
        path = folder / "settings" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    places = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "IPYTHONDIR": "ipython",
    }
    return {name: str(folder / place) for name, place in places.items()}


def _wait_until_it_answers(process, runtime, directory, log):
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError, ValueError):  # not there yet, half-written, not listening yet
            description = json.loads((runtime / f"jpserver-{process.pid}.json").read_text())
            server = Server(directory, description["url"], description["token"])
            server.api("status")
            return server
        time.sleep(0.1)
    raise RuntimeError(f"JupyterLab does not answer (exit status {process.poll()}):\n{log.read_text()[-3000:]}")


def _stop(process):
    """The server ends its kernels when it is asked to; what is left of its session after that is ended with it."""
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=20)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Notebook:
    """One notebook, open in a browser page. ``path`` is relative to the server's directory."""

    def __init__(self, page: Page, server: Server, path: str) -> None:
        self.page = page
        self.server = server
        self.path = path

    def open(self) -> "Notebook":
        """Open it and wait until its kernel is idle; nothing has been run then.

        Where the page shows JupyterLab already, that opens it, which takes a quarter of the time.
        """
        if not self.page.url.startswith(self.server.url):
            return self.reload()
        self.page.evaluate(OPEN, self.path)
        expect(self.panel.locator(".jp-Cell").first).to_be_visible(timeout=SECONDS * 1000)
        self.wait_until_idle()
        return self

    def reload(self) -> "Notebook":
        """Load JupyterLab with it, as a reader does who comes back, and wait until its kernel is idle."""
        self.load()
        self.wait_until_idle()
        return self

    def load(self) -> None:
        """Load JupyterLab with it; its cells are there then, its kernel perhaps not yet."""
        self.page.goto(f"{self.server.url}lab/tree/{quote(self.path)}?reset&token={self.server.token}")
        expect(self.panel.locator(".jp-Cell").first).to_be_visible(timeout=SECONDS * 1000)

    @property
    def panel(self) -> Locator:
        """The visible notebook."""
        return self.page.locator(".jp-NotebookPanel:visible")

    def cell(self, number: int) -> Locator:
        """Cell ``number`` of the notebook, counted from 0 over code and prose alike."""
        return self.panel.locator(".jp-Notebook .jp-Cell").nth(number)

    def output(self, number: int) -> Locator:
        """Everything that cell ``number`` shows."""
        return self.cell(number).locator(".jp-Cell-outputWrapper")

    def wait_until_idle(self) -> None:
        """Wait until the server and the indicator in the page agree that the kernel has nothing to do."""
        end = time.monotonic() + SECONDS
        while self._kernel_state() != "idle":
            if time.monotonic() > end:
                raise TimeoutError(f"the kernel of {self.path} is {self._kernel_state()} after {SECONDS} s")
            self.page.wait_for_timeout(250)  # lets the page work; time.sleep would not
        idle = self.panel.locator('.jp-Notebook-ExecutionIndicator[data-status="idle"]')
        expect(idle).to_be_visible(timeout=SECONDS * 1000)

    def run_all(self) -> None:
        """Run every cell, from cleared outputs, and wait until each code cell has its number and the kernel is idle."""
        self.menu("Edit", "Clear Outputs of All Cells")
        self.menu("Run", "Run All Cells")
        prompts = self.panel.locator(".jp-CodeCell:not(:has(.cm-placeholder)) .jp-InputPrompt")
        for number in range(prompts.count()):
            expect(prompts.nth(number)).to_have_text(re.compile(r"\[\d+\]"), timeout=SECONDS * 1000)
        self.wait_until_idle()

    def menu(self, menu: str, item: str) -> None:
        """Choose from a menu. An item's accessible name also holds its shortcut, so only its beginning is compared."""
        self.page.get_by_role("menuitem", name=re.compile(f"^{re.escape(menu)}$")).click()
        self.page.get_by_role("menuitem", name=re.compile(f"^{re.escape(item)}")).first.click()

    def save(self) -> None:
        """Save it until its tab says that all is saved: an output may still be about to store what it shows."""
        end = time.monotonic() + SECONDS
        while True:
            self.menu("File", "Save Notebook")
            self.page.wait_for_timeout(1000)
            if not self.page.locator(".lm-TabBar-tab.lm-mod-current.jp-mod-dirty").count():
                return
            assert time.monotonic() < end, f"{self.path} is not saved after {SECONDS} s"

    def errors(self) -> list[str]:
        """Tracebacks and standard error shown under any cell."""
        return self.shown_errors.all_inner_texts()

    @property
    def shown_errors(self) -> Locator:
        """Elements that `errors` reads; the page may show them a moment after the kernel has become idle."""
        kinds = ("application/vnd.jupyter.error", "application/vnd.jupyter.stderr")
        return self.panel.locator(", ".join(f'[data-mime-type="{kind}"]' for kind in kinds))

    def _kernel_state(self) -> str:
        sessions = [s for s in self.server.api("sessions") if s["path"] == self.path]
        return sessions[0]["kernel"]["execution_state"] if sessions else "not started"


class Watch:
    """Faults of a page that nobody sees: errors of its scripts, and requests to any other host."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.page_errors: list[str] = []
        self.elsewhere: list[str] = []
        page.on("pageerror", lambda error: self.page_errors.append(str(error)))
        page.on("request", lambda request: self._look_at(request.url))
        page.on("websocket", lambda socket: self._look_at(socket.url))

    def _look_at(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https", "ws", "wss") and parts.hostname not in ("127.0.0.1", "localhost"):
            self.elsewhere.append(url)

    def close_notebooks(self, server: Server) -> None:
        """Close what JupyterLab shows, without a question, and end all kernels; what that upsets is no fault."""
        if self.page.url.startswith(server.url):
            self.page.evaluate(CLOSE)
        for session in server.api("sessions"):
            with contextlib.suppress(
                urllib.error.HTTPError
            ):  # of a kernel that starts again, which ends with the server
                server.api(f"sessions/{session['id']}", "DELETE")
        self.page.wait_for_timeout(100)
        self.page_errors.clear()

    def assert_clean(self) -> None:
        """Raise an AssertionError that lists what was seen since this was last asked, if anything."""
        seen = self.page_errors + self.elsewhere
        self.page_errors, self.elsewhere = [], []
        assert seen == [], seen
