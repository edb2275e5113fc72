"""How the processes of a run that stays on one machine find each other."""

from pathlib import Path

from wattlaw.training.handover import RENDEZVOUS_FILE


def on_one_machine(folder: Path) -> tuple[list[str], dict[str, str]]:
    """Return words for torchrun, and the environment, by which processes meet through files.

    torch's TCP store would listen on every interface of the machine.

    Parameters
    ----------
    folder
        Of this run alone, on a file system of this machine or one that locks files.
    """
    words = ["--local-addr", "127.0.0.1", "--rdzv-backend", "c10d"]
    words += ["--rdzv-conf", "store_type=file", "--rdzv-endpoint", str(folder / "agents")]
    environment = {
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        RENDEZVOUS_FILE: str(folder / "ranks"),
    }
    return words, environment
