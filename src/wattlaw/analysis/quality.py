"""Which way a quality metric is better."""

_HIGHER = ("accuracy", "top1", "top5", "acc", "f1", "bleu", "auc", "r2", "iou", "map", "progress")
_LOWER = ("loss", "error", "mae", "mse", "rmse", "perplexity", "wer")


def direction(name: str | None) -> str | None:
    """Return ``higher`` or ``lower``, as a metric of this name is better; None where it is unclear.

    The name is split at what is no letter or digit; a word that is known decides, such as ``acc``
    in ``val_acc`` or ``rmse`` in ``rmse_u10``. Names with words of both kinds are unclear.
    """
    tokens = set("".join(c if c.isalnum() else " " for c in (name or "").lower()).split())
    higher, lower = not tokens.isdisjoint(_HIGHER), not tokens.isdisjoint(_LOWER)
    if higher == lower:
        return None
    return "higher" if higher else "lower"
