"""The proteins example: packages, similarity split, items and scores, baselines, and the commands on tiny data."""

import hashlib
import io
import json
import random
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gesso
from examples.proteins import base, baselines, check_split, debs, likelihood, picture
from examples.proteins.align import align
from examples.proteins.data import rows_of, write_data
from examples.proteins.relatives import WORD, Relative, best_scores, families, related
from examples.proteins.residues import BLOSUM62, RESIDUES, read_fasta
from examples.proteins.sequences import NEAR, Protein, divide, read_proteins, write_proteins
from examples.proteins.task import Known, Motifs, Proteins, Relatives
from examples.proteins.windows import (
    EDGE,
    LONGEST,
    MOTIFS,
    SHARED,
    SHORTEST,
    WINDOW,
    draw_hole,
    draw_hole_beside,
    draw_hole_with,
    pattern,
    prompt,
)
from gesso import InputError
from gesso.eval.evaluate import fingerprint
from gesso.train import recipe

RECIPE = Path(__file__).parents[2] / "examples/proteins/proteins.toml"


def protein(seed: str, length: int = 120) -> str:
    return "".join(random.Random(seed).choices(RESIDUES, k=length))


def mutated(sequence: str, share: float, seed: str) -> str:
    """Replace a share of the residues."""
    draw = random.Random(seed)
    return "".join(draw.choice(RESIDUES) if draw.random() < share else residue for residue in sequence)


def entry(name: str, sequence: str, split: str, family: str | None = None, *, known: bool = False) -> Protein:
    return Protein(name=name, sequence=sequence, split=split, family=family or name, known=known)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data of a few random proteins."""
    out = tmp_path_factory.mktemp("proteins")
    found = [entry(f"t{i}", protein(f"t{i}"), "train") for i in range(30)]
    found += [entry(f"new{i}", protein(f"new{i}"), "test") for i in range(6)]
    found += [entry(f"r{i}", mutated(protein(f"new{i}"), 0.4, f"r{i}"), "test", f"new{i}") for i in range(6)]
    known = [mutated(protein(f"t{i}"), 0.2, f"k{i}") for i in range(6)]
    found += [entry(f"k{i}", one, "test", f"t{i}", known=True) for i, one in enumerate(known)]
    write_data(found, out, coverage=1)
    return out


# --- packages -------------------------------------------------------------------------------------------------------


def deb(path: Path, member: str, content: bytes) -> debs.Package:
    """Write a package with one file."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w:xz") as archive:
        info = tarfile.TarInfo(f"./{member}")
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    raw = debs.MAGIC
    for name, data in (("debian-binary", b"2.0"), ("data.tar.xz", tar.getvalue())):
        raw += f"{name:16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n".encode() + data + b"\n" * (len(data) % 2)
    path.write_bytes(raw)
    sha256 = hashlib.sha256(raw).hexdigest()
    return debs.Package(name="p", version="1", file=path.name, sha256=sha256, members={member: "forward"})


def test_file_of_a_package_is_read_and_its_hash_checked(tmp_path: Path) -> None:
    package = deb(tmp_path / "p.deb", "usr/a.fasta", b">x\nMK\n")
    path = debs.fetch(package, tmp_path, print)
    assert debs.read_member(path, "usr/a.fasta") == b">x\nMK\n"
    with pytest.raises(InputError, match="no file usr/b"):
        debs.read_member(path, "usr/b")
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(InputError, match=r"SHA-256 .* delete it"):
        debs.fetch(package, tmp_path, print)


def test_package_that_cannot_be_downloaded_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"pftools_.*\.deb.*\n.*any mirror of Debian"):
        debs.fetch(debs.read_packages()[0], tmp_path, print)


# --- similarity -----------------------------------------------------------------------------------------------------


def test_families_are_relatives_of_relatives() -> None:
    first, other = protein("a"), protein("b")
    second = mutated(first, 0.2, "1")
    third = mutated(second, 0.2, "2")
    assert families([first, other, third, second]).tolist() == [0, 1, 0, 0]


def test_word_of_low_complexity_joins_no_families() -> None:
    tail = "QPQ" * 14
    assert families([protein("a") + tail, protein("b") + tail]).tolist() == [0, 1]


def test_relative_without_a_common_run_of_residues_is_found() -> None:
    sequence = protein("a", 200)
    broken = "".join("AG"[residue == "A"] if i % 4 == 3 else residue for i, residue in enumerate(sequence))
    strangers = [protein(f"s{i}", 200) for i in range(20)]
    score, target = best_scores([broken, protein("c", 200)], [*strangers, sequence])
    assert score[0] >= NEAR > score[1]
    assert target[0] == len(strangers)


def test_alignment_crosses_gaps_and_counts_identity() -> None:
    sequence = protein("a")
    deleted, inserted = sequence[:60] + sequence[64:], sequence[:60] + "WPWP" + sequence[60:]
    shorter, longer, stranger = align(sequence, [protein("x", 30) + deleted, inserted, protein("b", 90)])
    assert (shorter.columns, shorter.identity) == (120, 116 / 120)
    assert (longer.columns, longer.identity) == (124, 120 / 124)
    for found, text in ((shorter, deleted), (longer, sequence)):
        assert found.score == sum(int(BLOSUM62[i, i]) for i in map(RESIDUES.index, text)) - 15
    assert shorter.expected(120, 10**7) < 1e-3 < stranger.expected(120, 10**7)


def test_related_sequences_share_a_word_and_differ() -> None:
    first = protein("a")
    second, twin = mutated(first, 0.4, "1"), mutated(first, 0.1, "2")
    found = related([protein("b"), first, second, twin])
    assert not found[0]
    assert {one.sequence for one in found[1]} == {second}
    assert first in {one.sequence for one in found[2]}
    for one in found[1]:
        assert first[one.at : one.at + len(WORD)] == second[one.there : one.there + len(WORD)]


def test_held_out_sequence_has_no_relative_in_training(tmp_path: Path) -> None:
    sequences = {f"p{i}": protein(f"p{i}", 100) for i in range(60)}
    sequences |= {f"q{i}": mutated(sequences[f"p{i}"], 0.3, f"q{i}") for i in range(60)}
    found = divide(sequences, lambda _: None, known_share=5)
    train = [one.sequence for one in found if one.split == "train"]
    held = [one.sequence for one in found if one.split != "train" and not one.known]
    assert len(held) >= 8
    assert len(train) >= 50
    assert best_scores(held, train)[0].max() < NEAR
    assert 0 < sum(one.known for one in found) < 40
    write_proteins(found, tmp_path)
    assert read_proteins(tmp_path) == found


def test_held_out_sequence_with_a_relative_of_another_family_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    # Families that are found would hold all relatives.
    monkeypatch.setattr("examples.proteins.sequences.families", lambda texts: np.arange(len(texts)))
    sequences = {f"p{i}": protein(f"p{i}", 100) for i in range(40)}
    sequences |= {f"q{i}": mutated(sequences[f"p{i}"], 0.3, f"q{i}") for i in range(40)}
    found = divide(sequences, lambda _: None)
    held = [one.sequence for one in found if one.split != "train"]
    train = [one.sequence for one in found if one.split == "train"]
    assert len(found) < len(sequences)
    assert not held or best_scores(held, train)[0].max() < NEAR


def test_check_finds_a_relative_that_was_put_into_test(folder: Path, tmp_path: Path) -> None:
    check_split.main(["--data", str(folder)])
    found = read_proteins(folder)
    leak = entry("leak", mutated(found[0].sequence, 0.3, "leak"), "test")
    write_data([*found, leak], tmp_path, coverage=0.1)
    with pytest.raises(SystemExit, match="1 test sequences have a relative"):
        check_split.main(["--data", str(tmp_path)])


# --- items ----------------------------------------------------------------------------------------------------------


def test_hole_keeps_the_window_and_its_edges() -> None:
    draw = random.Random(0)
    for length in (60, 150, 400):
        sequence = protein("a", length // 2) + "SAK" + protein("b", length - length // 2 - 3)
        for motif in ("", "[ST].[RK]"):
            for _ in range(50):
                hole = draw_hole_with(draw, sequence, motif) if motif else draw_hole(draw, sequence)
                assert hole is not None
                assert hole.before + hole.hidden + hole.after in sequence
                assert len(hole.before + hole.hidden + hole.after) == min(WINDOW, length)
                assert SHORTEST <= len(hole.hidden) <= LONGEST
                assert min(len(hole.before), len(hole.after)) >= 8
                assert re.search(motif, hole.hidden)


def test_hole_beside_a_relative_keeps_the_shared_word_and_its_counterpart() -> None:
    draw = random.Random(0)
    sequence, offset = protein("a", 300), 40
    relative = Relative(protein("b", offset) + sequence, at=150, there=150 + offset)
    for _ in range(200):
        found = draw_hole_beside(draw, sequence, relative)
        assert found is not None
        hole, shown = found
        assert len(hole.before + hole.hidden + hole.after) == len(shown) == SHARED
        assert hole.before + hole.hidden + hole.after in sequence
        assert SHORTEST <= len(hole.hidden) <= LONGEST
        assert min(len(hole.before), len(hole.after)) >= EDGE
        assert sequence[150 : 150 + len(WORD)] in hole.before + "-" + hole.after
        assert hole.hidden in relative.sequence
    assert draw_hole_beside(draw, sequence, Relative(sequence[150:159], at=150, there=0)) is None


@pytest.mark.parametrize("motif", MOTIFS)
def test_pattern_is_the_length_and_the_motif(motif: str) -> None:
    draw = random.Random(motif)
    allowed = re.compile(pattern(12, motif))
    for _ in range(300):
        text = "".join(draw.choices("NSTRKPDEGCA", k=12))
        assert bool(allowed.fullmatch(text)) == bool(re.search(motif, text))
    assert not allowed.fullmatch("RGD" * 5)


def test_items_come_from_held_out_sequences_only(folder: Path) -> None:
    train = [one.sequence for one in read_proteins(folder) if one.split == "train"]
    for kind, prefix in ((Proteins, "new"), (Known, "k"), (Motifs, "new"), (Relatives, "")):
        task = kind(data=(folder,))
        items = list(task.items("test", 8, 0))
        assert {item.name[: len(prefix)] for item in items} == {prefix}
        assert len({item.name.split(":")[0] for item in items[:6]}) == 6
        assert [item.name for item in task.items("test", 4, 0)] == [item.name for item in items[:4]]
        for item in items:
            before, after = task.hole(item)
            assert isinstance(item.prompt, str)
            assert before == item.prompt[len("<|fim_prefix|>") :].split("<|fim_suffix|>")[0]
            assert after == item.meta["after"]
            assert re.fullmatch(item.constraint["regex"], item.expected)
            assert task.score(item, item.expected) == dict.fromkeys(task.scores, 1.0)
            assert not any(item.meta["before"] + item.expected + item.meta["after"] in text for text in train)
    with pytest.raises(InputError, match=r"validation split has 0 items.*4 were requested"):
        list(Proteins(data=(folder,)).items("validation", 4, 0))


def test_item_with_a_relative_shows_another_member_of_the_family(folder: Path) -> None:
    proteins = {one.name: one for one in read_proteins(folder)}
    items = list(Relatives(data=(folder,)).items("test", 8, 0))
    families_of = [proteins[item.name.split(":")[0]].family for item in items]
    assert len(set(families_of[:6])) == 6  # one of each family first
    for item, family in zip(items, families_of, strict=True):
        assert isinstance(item.prompt, str)
        assert item.prompt.split("\n")[1] == item.meta["relative"]
        others = [one for one in proteins.values() if one.family == family and one.name != item.name.split(":")[0]]
        assert any(item.meta["relative"] in one.sequence for one in others)


def test_scores_count_positions_of_the_true_stretch(folder: Path) -> None:
    task = Proteins(data=(folder,))
    item = next(task.items("test", 1, 0))
    right = item.expected
    wrong = "".join("A" if residue != "A" else "W" for residue in right)
    assert task.score(item, right[:3] + wrong[3:])["recovery"] == 3 / len(right)
    assert task.score(item, right + "A") == {"recovery": 1.0, "similarity": 1.0, "length": 0.0}
    assert task.score(item, " é \n") == {"recovery": 0.0, "similarity": 0.0, "length": 0.0}


def test_rows_have_the_form_of_the_items() -> None:
    sequence = protein("a", 400)
    other = mutated(sequence, 0.4, "b")
    relatives = related([sequence, other])[0]
    form = re.compile(r"<\|fim_prefix\|>(\d+)( \S+)?\n(\w+\n)?(\w+)<\|fim_suffix\|>(\w+)<\|fim_middle\|>")
    for known in ((), relatives):
        rows = list(rows_of(entry("a", sequence, "train"), known, coverage=4))
        assert len(rows) == round(4 * 400 / 22.5)
        found = [form.fullmatch(row["prompt"]) for row in rows]
        for one, row in zip(found, rows, strict=True):
            assert one
            assert int(one[1]) == len(row["completion"])
            assert not one[2] or re.search(one[2].strip(), row["completion"])
            assert not one[3] or one[3].strip() in other
        assert any(one and one[2] for one in found)
        assert any(one and one[3] for one in found) == bool(known)


def test_fasta_entries_are_joined_lines() -> None:
    assert list(read_fasta(">a one\nMK\nLV\n>b\n\nMM\n")) == [("a", "MKLV"), ("b", "MM")]


# --- baselines ------------------------------------------------------------------------------------------------------


def test_chain_uses_both_sides() -> None:
    chain = baselines.fit_chain(["ACDEFGHIK" * 200, "ACDWWWHIK" * 200])
    assert baselines.likeliest(chain, "HIKACD", "GHIK", 2) == "EF"
    assert baselines.likeliest(chain, "HIKACD", "HIKA", 3) in ("EFG", "WWW")
    assert baselines.likeliest(chain, "HIKACD", "WHIK", 2) == "WW"
    assert np.allclose(chain.sum(axis=-1), 1)
    assert np.allclose(baselines.marginals(chain, "HIKACD", "HIKA", 3).sum(axis=-1), 1)


def test_baselines_print_scores_of_the_items(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for task, likely in (("Known", 60), ("Relatives", 40)):
        baselines.main(["--data", str(folder), "--count", "6", "--task", task])
        shown = dict(re.findall(r"^(.{12}) recovery ([\d.]+)", capsys.readouterr().out, re.M))
        scores = {name.strip(): float(value) for name, value in shown.items()}
        assert set(scores) == {"most common", "frequencies", "visible", "k-mer", "copy"}
        assert scores["copy"] > likely > 30 > max(scores[name] for name in ("most common", "frequencies", "visible"))


def test_a_run_is_compared_with_the_baselines_on_the_same_items(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    items = list(Proteins(data=(folder,)).items("test", 6, 0))
    right = [{"scores": dict.fromkeys(Proteins.scores, 1.0), "error": None, "denoising_steps": 1} for _ in items]
    run = {"task": "proteins", "fingerprint": fingerprint(items), "scores": Proteins.scores, "items": right}
    file = tmp_path / "perfect.json"
    file.write_text(json.dumps([run]))
    baselines.main(["--data", str(folder), "--count", "6", "--run", str(file)])
    shown = capsys.readouterr().out
    assert re.search(r"^perfect +recovery 100\.0 ", shown, re.M)
    copied = re.search(r"^copy +recovery ([\d.]+)", shown, re.M)
    change = re.search(r"^perfect - copy recovery \+([\d.]+)", shown, re.M)
    assert copied and change and float(copied[1]) + float(change[1]) == pytest.approx(100, abs=0.11)
    with pytest.raises(SystemExit, match="different items"):
        baselines.main(["--data", str(folder), "--count", "5", "--run", str(file)])


def test_items_of_one_family_count_as_one() -> None:
    values = [0.1, 0.3, 0.2, 0.9, 0.5]
    once = baselines.estimate(values, "abcde")
    twice = baselines.estimate(values * 2, "abcde" * 2)
    assert (twice.mean, twice.low, twice.high) == pytest.approx((once.mean, once.low, once.high))


class Even:
    """A model to which all residues are equally likely."""

    def decide(self, prompt: str, choices: list[str]) -> SimpleNamespace:
        return SimpleNamespace(scores={choice: -len(choice) * np.log(20) for choice in choices})


def test_likelihood_of_a_model_without_knowledge_is_that_of_even_frequencies(
    folder: Path, loads: Callable[[Any], None], capsys: pytest.CaptureFixture[str]
) -> None:
    loads(lambda *_, **__: Even())
    likelihood.main(["--data", str(folder), "--count", "4"])
    shown = {name: float(value) for name, value in re.findall(r"^(\S+) +([\d.]+) \(", capsys.readouterr().out, re.M)}
    assert shown["canvas"] == pytest.approx(np.log(20), abs=1e-3)
    assert shown["frequencies"] == pytest.approx(np.log(20), abs=0.1)  # the residues of this data are drawn evenly


# --- the model ------------------------------------------------------------------------------------------------------


def test_residue_is_a_token_and_a_draft_is_drawn(folder: Path, tmp_path: Path) -> None:
    base.main(["--out", str(tmp_path / "model")])
    g = gesso.load(tmp_path / "model")
    asked = prompt("MKLLST", "AASSLL", 17)
    assert len(g.tokenizer.encode(asked)) == 1 + 3 + len("17\nMKLLSTAASSLL")  # bos and the markers
    settings = recipe.load(RECIPE)
    longest = prompt("A" * (WINDOW - LONGEST), "", LONGEST, max(MOTIFS, key=len))
    compared = prompt("A" * (SHARED - LONGEST), "", LONGEST, relative="A" * SHARED)
    for text in (longest, compared):
        assert len(g.tokenizer.encode(text)) + LONGEST + 1 <= settings.data.max_length
    assert settings.objective.canvas_lengths == (Proteins.options["max_new_tokens"],)
    item = next(Motifs(data=(folder,)).items("test", 1, 0))
    assert isinstance(item.prompt, str)
    constrained = {**Motifs.options, **item.constraint, "steps": 2, "seed": 0}
    scores = Motifs(data=(folder,)).score(item, g.generate(item.prompt, **constrained).text)
    assert (scores["motif"], scores["length"]) == (1, 1)
    columns = [[("L", 0.4), ("V", 0.3), ("(", 0.1), ("", 0.2)]] * len(item.expected)
    drawing = picture.draw([columns] * 9, item)
    assert drawing.count(">V</text>") >= picture.SHOWN * len(item.expected)
    assert "(</text>" not in drawing
    assert len(picture.drafts(g, item, 0)[0]) == len(item.expected)
