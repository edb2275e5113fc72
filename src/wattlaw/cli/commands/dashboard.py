"""``wattlaw dashboard``."""

import getpass
import os
import socket
import tempfile
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from wattlaw.cli.common.console import Console
from wattlaw.cli.common.options import StoreArguments, option
from wattlaw.errors import NotAvailable
from wattlaw.files import write_text
from wattlaw.store.store import Store

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
        from wattlaw.dashboard import server
        from wattlaw.dashboard.access import Tokens, kept_cookie
    except ImportError as error:
        raise NotAvailable(
            f'{error.name} is not installed; try: pip install "wattlaw[dashboard]"'
        ) from None
    from wattlaw.dashboard.pages import Pages

    paths = tuple(Store.existing(path).path for path in stores)
    console = Console()
    pages = Pages(paths)
    if tcp is None and not open_browser:
        listening, path = server.listen_unix(_private_folder(paths[0]))
        login = f"{getpass.getuser()}@{socket.gethostname()}"
        console.print("On your own machine:", soft_wrap=True)
        console.print(f"  ssh -N -L {_LOCAL_PORT}:{path} {login}", soft_wrap=True)
        console.print(
            f"and then open http://localhost:{_LOCAL_PORT}/ there. Ctrl-C stops the server."
        )
        try:
            server.serve(pages, listening, None)
        finally:
            path.unlink(missing_ok=True)
        return 0
    tokens = Tokens(kept_cookie(_private_folder(paths[0])))
    listening = server.listen_tcp(tcp or 0)
    port = listening.getsockname()[1]
    url = f"http://127.0.0.1:{port}/?token={tokens.token}"
    if not open_browser:
        console.print(f"Open {url}", soft_wrap=True)
        console.print("The token is valid once. Ctrl-C stops the server.")
        server.serve(pages, listening, tokens)
        return 0
    # A command line is visible to all users of the machine: the browser gets a private file.
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "dashboard.html"
        write_text(file, f'<meta http-equiv="refresh" content="0; url={url}">\n', durable=False)
        webbrowser.open(file.as_uri())
        console.print(
            f"Serving http://127.0.0.1:{port}/ for this browser. Ctrl-C stops the server."
        )
        server.serve(pages, listening, tokens)
    return 0


def _private_folder(store: Path) -> Path:
    """Return the user's runtime folder, or one of this user in the store where there is none."""
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or "/nonexistent")
    # The owner of a folder can replace what is in it.
    if runtime.is_absolute() and runtime.is_dir() and runtime.stat().st_uid == os.getuid():
        return runtime / "wattlaw"
    return store.resolve() / f".dashboard-{os.getuid()}"
