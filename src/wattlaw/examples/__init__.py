"""The examples that come with the package: study files, and training scripts."""

from dataclasses import dataclass
from importlib import resources

from wattlaw.common.errors import BadInput
from wattlaw.common.text import quote


@dataclass(frozen=True)
class Example:
    name: str
    summary: str
    files: tuple[str, ...]

    def read(self, file: str) -> bytes:
        return resources.files(__name__).joinpath(file).read_bytes()


def _study(name: str, summary: str, *more_files: str) -> Example:
    return Example(name, summary, (f"{name}.yaml", *more_files))


EXAMPLES = (
    Example("tutorial", "the README's training script, for wattlaw init", ("train.py",)),
    _study("quickstart", "a small net on real data with 1 and 2 workers; ends in minutes"),
    _study("four-workers", "strong scaling of a small net to 4 workers of one thread each"),
    _study("decide", "a decision on a small net with part of its 20 runs; ends in minutes"),
    _study("models", "the seven models, at a size that a laptop trains in minutes"),
    _study("own-script", "a sweep over your own training script (DDP)", "own_script.py"),
    _study("mit-2022-all", "Frey et al. 2022: all six models on up to 424 V100, 3,402 runs"),
    _study("mit-2022-vision", "Frey et al. 2022: VGG16, InceptionV3 and ResNet50 on ImageNet"),
    _study("mit-2022-language", "Frey et al. 2022: BERT-Base on WikiText-103"),
    _study("mit-2022-molecules", "Frey et al. 2022: DimeNet and SchNet on QM9"),
    _study("kit-2025-resnet50", "Huber et al. 2025: ResNet50 on ImageNet, on A100 and H100"),
    _study("kit-2025-fourcastnet-pretrain", "Huber et al. 2025: FourCastNet on ERA5"),
    _study("kit-2025-fourcastnet-finetune", "Huber et al. 2025: FourCastNet, second stage"),
)


def example(name: str) -> Example:
    examples = {known.name: known for known in EXAMPLES}
    if name not in examples:
        raise BadInput(f"no example is named {quote(name)}; allowed: {', '.join(examples)}")
    return examples[name]
