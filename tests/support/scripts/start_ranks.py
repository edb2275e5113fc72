"""Starts a script as ranks of a node; forked, so that they import the script's libraries once."""

import ast
import os
import runpy
import socket
import sys
from pathlib import Path

count, script = int(sys.argv[1]), sys.argv[2]
tree = ast.parse(Path(script).read_text())
tree.body = [line for line in tree.body if isinstance(line, (ast.Import, ast.ImportFrom))]
exec(compile(tree, script, "exec"), {})  # noqa: S102 - a script of the tests
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
own |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "TORCHELASTIC_RUN_ID": "own"}
sys.argv = sys.argv[2:]
ranks = []
for rank in map(str, range(count)):
    if not (pid := os.fork()):
        os.environ |= own | {"RANK": rank, "LOCAL_RANK": rank}
        runpy.run_path(script, run_name="__main__")
        sys.exit()
    ranks.append(pid)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks))
