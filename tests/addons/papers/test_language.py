"""BERT on WikiText: what is read from files, what is masked, and what the model computes."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tokenizers import Tokenizer
from tokenizers.models import WordPiece

from wattlaw.common import registry
from wattlaw.common.errors import BadInput
from wattlaw.workloads.catalogue import GROUP
from wattlaw.workloads.data_loading import splitmix64
from wattlaw_papers.workloads.language import BERT_BASE, Options
from wattlaw_papers.workloads.language.bert import Bert
from wattlaw_papers.workloads.language.corpus import find_text, lines_of
from wattlaw_papers.workloads.language.masking import MaskedBlocks, Vocabulary, predicted
from wattlaw_papers.workloads.language.synthetic_text import make_data
from wattlaw_papers.workloads.language.tokenizer import train

NET: dict[str, Any] = {"hidden_size": 64, "layers": 2, "heads": 2, "intermediate_size": 128}
SMALL = NET | {"vocab_size": 2000, "sequence_length": 32}
SYNTHETIC = {**SMALL, "vocab_size": 300, "train_samples": 64, "evaluation_samples": 16}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "wikitext"
    make_data(folder, size=24, seed=5)
    return folder


def on(made: Path, **changes: Any) -> Bert:
    files = {"source": "text", "data": str(made / "text"), "tokenizer": str(made / "tokenizer")}
    return Bert(Options(**(SMALL | files | changes)))


def batch_of(data: MaskedBlocks, *samples: int, seed: int = 0) -> dict[str, torch.Tensor]:
    indices = np.array(samples)
    return data.batch(
        indices, splitmix64(np.array([seed], dtype=np.uint64), np.arange(len(indices)))
    )


def blocks_of(data: MaskedBlocks) -> list[tuple[int, ...]]:
    """Return the sequences with what was there put back."""
    batch = batch_of(data, *range(len(data)))
    whole = batch["input_ids"].scatter(1, batch["positions"], batch["labels"])
    return [tuple(row) for row in whole.tolist()]


def test_the_entry_is_registered_and_its_parameters_are_those_of_the_full_model():
    assert registry.load(GROUP, "bert-base") is BERT_BASE
    with torch.device("meta"):
        net = Bert(BERT_BASE.options()).model()
    assert sum(one.numel() for one in net.parameters()) == BERT_BASE.parameters == 109_514_298
    assert net.net.config._attn_implementation == "sdpa"


def test_loss_and_gradients_are_those_of_transformers_own_loss():
    bert = Bert(Options(**SYNTHETIC, dropout=0.0))
    torch.manual_seed(1)
    model = bert.model()
    data = batch_of(bert.training_data(), 3, 9, 20, 1)
    mine = bert.loss(model, data)
    mine.backward()
    gradients = [one.grad.clone() for one in model.parameters()]
    model.zero_grad()
    nowhere = torch.full_like(data["input_ids"], -100)
    labels = nowhere.scatter(1, data["positions"], data["labels"])
    theirs = model.net(input_ids=data["input_ids"], labels=labels).loss
    theirs.backward()
    assert mine.item() == pytest.approx(theirs.item(), rel=1e-5)
    for gradient, one in zip(gradients, model.parameters(), strict=True):
        torch.testing.assert_close(gradient, one.grad, rtol=1e-3, atol=1e-6)


def test_perplexity_of_a_lost_model_is_infinite_and_no_error():
    bert = Bert(Options(**SYNTHETIC))
    found = bert.metrics({"loss": 6.0, "accuracy": 1.0, "samples": 2.0})
    assert found == {"loss": 3.0, "perplexity": pytest.approx(math.exp(3)), "accuracy": 0.5}
    assert list(found)[:2] == ["loss", BERT_BASE.metric]
    assert bert.metrics({"loss": 2e3, "accuracy": 0.0, "samples": 2.0})["perplexity"] == math.inf


WORDS = Vocabulary(cls=1, sep=2, mask=3, ordinary=np.arange(10, 1000))


def counted_blocks(length: int, count: int) -> MaskedBlocks:
    """Return blocks of words 1000, 1001, ...: none is special and none is drawn by chance."""
    return MaskedBlocks(np.arange(1000, 1000 + (length - 2) * count, dtype=np.int32), length, WORDS)


@given(
    length=st.integers(8, 512), seeds=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=5)
)
def test_every_sequence_has_exactly_k_predicted_tokens_between_its_marks(length, seeds):
    data = counted_blocks(length, 2)
    indices = np.arange(len(seeds)) % 2
    batch = data.batch(indices, np.array(seeds, dtype=np.uint64))
    ids, positions, labels = (batch[name] for name in ("input_ids", "positions", "labels"))
    count = max(1, round(0.15 * (length - 2)))
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}
    assert ids.shape == (len(seeds), length)
    assert positions.shape == labels.shape == (len(seeds), count)
    assert (positions.diff() > 0).all()
    assert 1 <= positions.min() <= positions.max() <= length - 2
    assert (ids[:, 0] == WORDS.cls).all()
    assert (ids[:, -1] == WORDS.sep).all()
    inner = torch.tensor(indices)[:, None] * (length - 2) + torch.arange(length - 2) + 1000
    assert torch.equal(labels, inner.gather(1, positions - 1))
    changed = ids[:, 1:-1] != inner
    allowed = torch.zeros_like(changed).scatter(1, positions - 1, True)
    assert not (changed & ~allowed).any()


def test_eight_of_ten_are_masked_one_is_replaced_and_one_stays():
    data = counted_blocks(128, 2000)
    batch = batch_of(data, *range(2000))
    shown = batch["input_ids"].gather(1, batch["positions"])
    total = shown.numel()
    assert total == 2000 * predicted(128) == 2000 * 19
    shares = [
        float(kind.sum()) / total
        for kind in (shown == WORDS.mask, (shown >= 10) & (shown < 1000), shown == batch["labels"])
    ]
    assert sum(shares) == pytest.approx(1)
    # Four standard errors of a share of 38,000 draws.
    assert shares == pytest.approx([0.8, 0.1, 0.1], abs=4 * math.sqrt(0.8 * 0.2 / total))
    replaced = shown[(shown >= 10) & (shown < 1000)]
    assert replaced.float().mean() == pytest.approx(504.5, abs=4 * 286 / math.sqrt(len(replaced)))


def test_synthetic_evaluation_is_other_text_of_the_same_language():
    bert = Bert(Options(**SYNTHETIC))
    training = set(blocks_of(bert.training_data()))
    evaluation = set(blocks_of(bert.evaluation_data()))
    assert (len(training), len(evaluation)) == (64, 16)
    assert not training & evaluation
    assert training == set(blocks_of(Bert(Options(**SYNTHETIC)).training_data()))


def test_blocks_are_the_tokens_of_all_lines_in_order_without_the_rest(made):
    tokenizer = Tokenizer.from_file(str(made / "tokenizer" / "tokenizer.json"))
    text = (made / "text" / "wiki.train.tokens").read_text().replace("<unk>", "[UNK]")
    ids = [one for line in text.split("\n") for one in tokenizer.encode(line).ids]
    rows = np.array(blocks_of(on(made).training_data()))
    assert rows[:, 1:-1].ravel().tolist() == ids[: len(ids) // 30 * 30]
    assert (rows[:, 0] == tokenizer.token_to_id("[CLS]")).all()
    assert (rows[:, -1] == tokenizer.token_to_id("[SEP]")).all()
    assert tokenizer.token_to_id("[UNK]") in rows


def test_truncation_and_padding_of_a_tokenizer_file_are_ignored(made, tmp_path):
    limited = Tokenizer.from_file(str(made / "tokenizer" / "tokenizer.json"))
    limited.enable_truncation(4)
    limited.enable_padding(length=4)
    limited.save(str(tmp_path / "tokenizer.json"))
    found = blocks_of(on(made, tokenizer=str(tmp_path)).training_data())
    assert found == blocks_of(on(made).training_data())


def test_a_trained_tokenizer_is_the_same_each_time_and_in_every_process(made):
    text = find_text(made / "text", "train")
    found = [train(lines_of(text), lines_of(text), 600).to_str() for _ in range(2)]
    script = (
        "import sys; from pathlib import Path;"
        "from wattlaw_papers.workloads.language.corpus import find_text, lines_of;"
        "from wattlaw_papers.workloads.language.tokenizer import train;"
        "text = find_text(Path(sys.argv[1]), 'train');"
        "sys.stdout.write(train(lines_of(text), lines_of(text), 600).to_str())"
    )
    command = [sys.executable, "-c", script, str(made / "text")]
    found.append(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    assert len(set(found)) == 1
    trained = Tokenizer.from_str(found[0])
    assert trained.get_vocab_size() == 600
    assert [trained.token_to_id(name) for name in ("[PAD]", "[UNK]", "[MASK]")] == [0, 1, 4]


def test_tokens_are_kept_mapped_from_a_file_and_serve_every_length(made, tmp_path, monkeypatch):
    plain = blocks_of(on(made, tokenizer=None).training_data())
    cache = tmp_path / "cache"
    monkeypatch.setenv("WATTLAW_DATA_CACHE", str(cache))
    first = on(made, tokenizer=None).training_data()
    files = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
    again = on(made, tokenizer=None).training_data()
    shorter = on(made, tokenizer=None, sequence_length=16).training_data()
    assert blocks_of(first) == blocks_of(again) == plain
    kinds = sorted(np.load(path).dtype.name for path in cache.glob("*.npy"))
    assert kinds == ["uint16", "uint8"], "tokens and a tokenizer"
    assert all(
        path.stat().st_mtime_ns == when for path, when in files.items() if path.suffix != ".lock"
    )
    assert len(shorter) > len(again)
    flat, of_shorter = (np.array(each)[:, 1:-1].ravel() for each in (plain, blocks_of(shorter)))
    most = len(flat) // 14 * 14
    assert of_shorter[:most].tolist() == flat[:most].tolist()


def complaint(bert: Bert) -> str:
    with pytest.raises(BadInput) as caught:
        bert.training_data()
    text = str(caught.value)
    assert "\n" not in text
    return text


def copied(made: Path, folder: Path, part: str) -> Path:
    folder.mkdir()
    for path in (made / part).iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def test_missing_files_are_named(made, tmp_path):
    gone = on(made, data=str(tmp_path / "gone"))
    assert f"{tmp_path / 'gone'}: no such folder" in complaint(gone)
    assert "train" in complaint(on(made, data=str(tmp_path)))
    data = copied(made, tmp_path / "data", "text")
    (data / "train.txt").write_text("other words")  # of two that could be meant, none is guessed
    assert "wiki.train.tokens and train.txt" in complaint(on(made, data=str(data)))
    (data / "train.txt").unlink()
    (data / "wiki.valid.tokens").unlink()
    assert "valid" in complaint(on(made, data=str(data)))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the text has 0 tokens"),
        (b" . , . \n", "the text has 3 tokens"),
        (b" good \n bad \xff\n", "line 2: not UTF-8 at byte 6"),
    ],
)
def test_a_text_that_cannot_be_cut_into_sequences_is_named(made, tmp_path, content, words):
    data = copied(made, tmp_path / "data", "text")
    (data / "wiki.train.tokens").write_bytes(content)
    assert f"wiki.train.tokens: {words}" in complaint(on(made, data=str(data)))


def test_a_tokenizer_that_does_not_fit_is_named(made, tmp_path):
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    bert = on(made, tokenizer=str(folder))
    assert "has no tokenizer.json" in complaint(bert)
    few = Tokenizer(WordPiece({"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "word": 3}))
    few.save(str(folder / "tokenizer.json"))
    assert "tokenizer.json: has no token [SEP] [MASK]" in complaint(bert)
    (folder / "tokenizer.json").write_text("{}")
    assert "tokenizer.json: not a valid tokenizer" in complaint(bert)
    many = on(made, vocab_size=300)
    assert "tokenizer.json: has 2000" in complaint(many)
    assert "tokens; vocab_size allows 300" in complaint(many)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"source": "text"}, "source text needs data"),
        ({"data": "somewhere"}, "data is for source text only"),
        ({"heads": 7}, "heads 7 do not divide hidden_size 768"),
    ],
)
def test_options_that_contradict_are_refused(options, said):
    with pytest.raises(ValidationError, match=said):
        Options(**options)
