"""`gesso infill` and `gesso edit`: a file in, the same file with something new in it out."""

import json
import os

import pytest

BRIEF = ["--steps", "1", "--seed", "3", "--context", "12"]
SHORT = [*BRIEF, "--max-new-tokens", "2"]


@pytest.fixture(autouse=True)
def environment(tiny_directory, monkeypatch):
    monkeypatch.setenv("GESSO_MODEL", str(tiny_directory))


@pytest.fixture
def file(tmp_path):
    def make(text):
        path = tmp_path / "text.py"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return make


def test_infill_prints_the_file_with_its_holes_filled_and_leaves_the_file_alone(main, file):
    text = "\ufeffdef f(x):\r\n    return <FILL>\r\n\nprint(<FILL>)"
    path = file(text)
    ran = main("infill", str(path), *SHORT)
    assert ran.code == 0
    first, second, third = text.split("<FILL>")
    assert ran.out.startswith(first)
    assert ran.out.endswith(third)
    assert second in ran.out
    assert path.read_bytes() == text.encode()
    assert ran.err.count("seed 3") == 2


def test_middle_and_json_give_the_same_as_the_whole_text(main, file):
    path = str(file("a = <FILL>\nb = 2\n"))
    whole = main("infill", path, *SHORT).out
    middle = main("infill", path, "--middle", *SHORT).out.removesuffix("\n")
    assert whole == f"a = {middle}\nb = 2\n"
    said = json.loads(main("infill", path, "--json", *SHORT).out)
    assert said["text"] == whole
    assert [filled["text"] for filled in said["middles"]] == [middle]
    assert said["middles"][0]["method"] == "pinned"


def test_infill_and_edit_take_every_setting_that_generate_takes(main, file):
    path = str(file("a = <FILL>\n"))
    settings = ["--t-max", "2.5", "--t-min", "2.5", "--entropy-bound", "5", "--canvas-length", "16", "--steps", "3"]
    warm = main("infill", path, "--seed", "3", "--max-new-tokens", "4", "--json", *settings)
    cold = main("infill", path, "--seed", "3", "--max-new-tokens", "4", "--json", *settings, "--t-min", "0.1")
    assert warm.code == cold.code == 0 and warm.out != cold.out
    refused = main("edit", path, "--span", "0:1", "--t-max", "0")
    assert refused.code == 2 and "t_max" in refused.err


def test_more_candidates_are_more_work_for_the_same_holes(main, file):
    path = str(file("a = <FILL>\nb = 2\n"))
    one, same, four = (
        json.loads(main("infill", path, "--json", *SHORT, *given).out)["middles"][0]
        for given in ([], ["--candidates", "1"], ["--candidates", "4"])
    )
    assert one == same
    assert four["usage"]["denoising_steps"] > one["usage"]["denoising_steps"]
    assert main("infill", path, *SHORT, "--candidates", "0").code == 2


def test_infill_reads_stdin_with_a_marker_of_ones_own(main):
    ran = main("infill", "-", "--marker", "[…]", *SHORT, stdin="a […] b\n")
    assert ran.code == 0
    assert ran.out.startswith("a ")
    assert ran.out.endswith(" b\n")


def test_in_place_writes_the_file_and_keeps_its_mode_and_its_link(main, file, tmp_path):
    path = file("a = <FILL>\r\n")
    path.chmod(0o750)
    link = tmp_path / "link"
    link.symlink_to(path)
    ran = main("infill", str(link), "--in-place", *SHORT)
    assert (ran.code, ran.out) == (0, "")
    assert link.is_symlink()
    assert path.read_bytes().startswith(b"a = ")
    assert path.read_bytes().endswith(b"\r\n")
    assert path.stat().st_mode & 0o777 == 0o750
    assert sorted(os.listdir(tmp_path)) == ["link", "text.py"]


def test_edit_changes_the_span_alone(main, file):
    path = file("héllo wörld, how are you?\r\n")
    ran = main("edit", str(path), "--span", "6:11", "--level", "0.5", *BRIEF)
    assert ran.code == 0
    assert ran.out.startswith("héllo ")
    assert ran.out.endswith(", how are you?\r\n")
    said = json.loads(main("edit", str(path), "--span", "6:11", "--level", "0.5", "--json", *BRIEF).out)
    assert said["text"] == ran.out == f"héllo {said['replacement']}, how are you?\r\n"
    assert main("edit", str(path), "--span", "6:11", "--in-place", "--instruction", "Greet.", *SHORT).code == 0
    assert path.read_bytes().decode().endswith(", how are you?\r\n")


@pytest.mark.parametrize(
    ("text", "arguments", "words"),
    [
        ("no hole", ["infill"], "has no hole: write <FILL>"),
        ("a <FILL> b", ["infill", "--marker", ""], "--marker is empty"),
        ("a <FILL><FILL> b", ["infill"], "nothing between them"),
        ("<FILL>", ["infill"], "no text around"),
        (b"caf\xe9 <FILL>", ["infill"], "not UTF-8 text: invalid continuation byte at byte 3"),
        ("a <FILL> b", ["infill", "--method", "magic"], "unknown method"),
        ("some text", ["edit", "--span", "3:99"], "outside the text"),
        ("some text", ["edit", "--span", "5:2"], "reversed"),
        ("some text", ["edit", "--span", "5"], "--span is START:END"),
        ("some text", ["edit", "--span", "1:3", "--level", "2"], "level must be"),
        ("some text", ["edit"], "--span"),
    ],
)
def test_bad_input_is_exit_code_2_one_line_and_an_untouched_file(main, file, text, arguments, words):
    path = file(text)
    before = path.read_bytes()
    command, *rest = arguments
    ran = main(command, str(path), "--in-place", *rest)
    assert ran.code == 2
    assert words in ran.err
    assert ran.out == ""
    assert path.read_bytes() == before


def test_what_is_no_file_is_said(main, tmp_path):
    assert "cannot be read: No such file" in main("infill", str(tmp_path / "none")).err
    assert "cannot be read: Is a directory" in main("edit", str(tmp_path), "--span", "0:1").err
    ran = main("infill", "-", "--in-place", stdin="a <FILL>")
    assert (ran.code, ran.out) == (2, "")
    assert "stdin has no place" in ran.err
