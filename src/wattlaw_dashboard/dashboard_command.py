"""``wattlaw dashboard``."""

import getpass
import os
import socket
import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from wattlaw.cli.common.console import Console
from wattlaw.cli.common.options import StoreArguments, option
from wattlaw.common.errors import NotAvailable
from wattlaw.common.files import write_text
from wattlaw.store.store import Store

if TYPE_CHECKING:
    from wattlaw_dashboard.access import Tokens

_LOCAL_PORT = 8765


def dashboard(
    stores: StoreArguments,
    tcp: Annotated[
        int | None,
        option(
            "PORT", "Listen on this port of 127.0.0.1 (0: any), with a token.", min=0, max=65535
        ),
    ] = None,
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open a browser on this machine (uses --tcp).")
    ] = False,
) -> int:
    """Show running studies in a browser, live."""
    try:
        from wattlaw_dashboard import server
        from wattlaw_dashboard.access import Tokens, kept_cookie
    except ImportError as error:
        remedy = 'try: pip install "wattlaw[dashboard]"'
        raise NotAvailable(f"{error.name} is not installed; {remedy}") from None

    paths = tuple(Store.existing(path).path for path in dict.fromkeys(stores))
    console = Console()
    private = _private_folder(paths[0])
    if tcp is None and not open_browser:
        listening, path = server.listen_unix(private)
        login = f"{getpass.getuser()}@{socket.gethostname()}"
        console.print("On your own machine:", soft_wrap=True)
        console.print(f"  ssh -N -L {_LOCAL_PORT}:{path} {login}", soft_wrap=True)
        console.print(f"and open http://localhost:{_LOCAL_PORT}/ there. Ctrl-C stops the server.")
        _serve(paths, listening, None, path)
    tokens = Tokens(kept_cookie(private))
    listening = server.listen_tcp(tcp or 0)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/?token={tokens.token}"
    # A command line is visible to all users of the machine: a browser gets a private file.
    file = private / f"open-{os.getpid()}.html"
    if open_browser:
        write_text(file, f'<meta http-equiv="refresh" content="0; url={url}">\n', mode=0o600)
    if not (open_browser and webbrowser.open(file.as_uri())):
        console.print(f"Open {url}", soft_wrap=True)
        console.print("The token is valid once.")
    console.print("Ctrl-C stops the server.")
    _serve(paths, listening, tokens, file)


def _serve(
    paths: tuple[Path, ...], listening: socket.socket, tokens: "Tokens | None", file: Path
) -> NoReturn:
    """Serve until a signal, remove a file, and end the process: a thread that still reads results
    in a library would abort an orderly end of Python."""
    from wattlaw_dashboard import server
    from wattlaw_dashboard.pages import Pages

    try:
        server.serve(Pages(paths), listening, tokens)
    finally:
        file.unlink(missing_ok=True)
    sys.stdout.flush()
    os._exit(0)


def _private_folder(store: Path) -> Path:
    """Return the user's runtime folder, or one of this user in the store where there is none."""
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or "/nonexistent")
    # The owner of a folder can replace what is in it.
    if runtime.is_absolute() and runtime.is_dir() and runtime.stat().st_uid == os.getuid():
        return runtime / "wattlaw"
    return store.resolve() / f".dashboard-{os.getuid()}"
