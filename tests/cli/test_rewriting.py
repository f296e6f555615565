"""`gesso infill` and `gesso edit` on the command line."""

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


def test_infill_prints_the_filled_text_and_leaves_the_file_unchanged(main, file):
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


def test_infill_middle_and_json_match_the_whole_text(main, file):
    path = str(file("a = <FILL>\nb = 2\n"))
    whole = main("infill", path, *SHORT).out
    middle = main("infill", path, "--middle", *SHORT).out.removesuffix("\n")
    assert whole == f"a = {middle}\nb = 2\n"
    said = json.loads(main("infill", path, "--json", *SHORT).out)
    assert said["text"] == whole
    assert [filled["text"] for filled in said["middles"]] == [middle]
    assert said["middles"][0]["method"] == "pinned"


def test_infill_and_edit_accept_diffusion_settings(main, file):
    path = str(file("a = <FILL>\n"))
    settings = [
        "--set",
        "t_max=2.5",
        "--set",
        "t_min=2.5",
        "--set",
        "entropy_bound=5",
        "--set",
        "canvas_length=16",
        "--steps",
        "3",
    ]
    warm = main("infill", path, "--seed", "3", "--max-new-tokens", "4", "--json", *settings)
    cold = main("infill", path, "--seed", "3", "--max-new-tokens", "4", "--json", *settings, "--set", "t_min=0.1")
    assert warm.code == cold.code == 0 and warm.out != cold.out
    refused = main("edit", path, "--span", "0:1", "--set", "t_max=0")
    assert refused.code == 2 and "t_max" in refused.err


def test_candidates_add_denoising_steps(main, file):
    path = str(file("a = <FILL>\nb = 2\n"))
    one, same, four = (
        json.loads(main("infill", path, "--json", *SHORT, *given).out)["middles"][0]
        for given in ([], ["--candidates", "1"], ["--candidates", "4"])
    )
    assert one == same
    assert four["usage"]["denoising_steps"] > one["usage"]["denoising_steps"]
    assert main("infill", path, *SHORT, "--candidates", "0").code == 2


def test_infill_reads_stdin_with_a_custom_marker(main):
    ran = main("infill", "-", "--marker", "[…]", *SHORT, stdin="a […] b\n")
    assert ran.code == 0
    assert ran.out.startswith("a ")
    assert ran.out.endswith(" b\n")


def test_in_place_keeps_mode_and_symbolic_link(main, file, tmp_path):
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


def test_edit_changes_only_the_span(main, file):
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
        ("no hole", ["infill"], "has no hole; write <FILL>"),
        ("a <FILL> b", ["infill", "--marker", ""], "--marker is empty"),
        ("a <FILL><FILL> b", ["infill"], "nothing between them"),
        ("<FILL>", ["infill"], "no text around"),
        (b"caf\xe9 <FILL>", ["infill"], "not UTF-8 text: invalid continuation byte at byte 3"),
        ("a <FILL> b", ["infill", "--method", "magic"], "unknown method"),
        ("some text", ["edit", "--span", "3:99"], "outside the text"),
        ("some text", ["edit", "--span", "5:2"], "reversed"),
        ("some text", ["edit", "--span", "5"], "--span must be START:END"),
        ("some text", ["edit", "--span", "1:3", "--level", "2"], "level must be"),
        ("some text", ["edit"], "--span"),
    ],
)
def test_bad_input_is_exit_code_2_and_leaves_the_file_unchanged(main, file, text, arguments, words):
    path = file(text)
    before = path.read_bytes()
    command, *rest = arguments
    ran = main(command, str(path), "--in-place", *rest)
    assert ran.code == 2
    assert words in ran.err
    assert ran.out == ""
    assert path.read_bytes() == before


def test_path_that_is_no_file_is_rejected(main, tmp_path):
    assert "cannot be read: No such file" in main("infill", str(tmp_path / "none")).err
    assert "cannot be read: Is a directory" in main("edit", str(tmp_path), "--span", "0:1").err
    ran = main("infill", "-", "--in-place", stdin="a <FILL>")
    assert (ran.code, ran.out) == (2, "")
    assert "stdin has none" in ran.err


# --- writing in place ---------------------------------------------------------------------------------------------


@pytest.fixture
def saved_meanwhile(monkeypatch):
    """Return a function that changes a file while the model generates, or deletes it if there is no text."""
    from gesso.api import Gesso

    def save(path, text):
        for name in ("edit", "infill_holes"):
            original = getattr(Gesso, name)

            def run(self, *arguments, original=original, **options):
                found = original(self, *arguments, **options)
                path.unlink() if text is None else path.write_text(text)
                return found

            monkeypatch.setattr(Gesso, name, run)  # between reading and writing the file

    return save


@pytest.mark.parametrize("command", [["edit", "--span", "0:3"], ["infill"], ["infill", "--middle"]])
def test_file_changed_meanwhile_is_kept_and_the_result_printed(main, file, saved_meanwhile, command):
    path = file("one <FILL> two\n")
    saved_meanwhile(path, "one <FILL> two\nand a line of somebody else\n")
    ran = main(command[0], str(path), "--in-place", *command[1:], *SHORT)
    assert path.read_text() == "one <FILL> two\nand a line of somebody else\n"
    assert ran.code == 2
    assert "changed while the model was writing" in ran.err
    assert " two\n" in ran.out and "somebody" not in ran.out
    assert os.listdir(path.parent) == ["text.py"]


def test_file_deleted_meanwhile_is_not_created_again(main, file, saved_meanwhile):
    path = file("one two three\n")
    saved_meanwhile(path, None)
    ran = main("edit", str(path), "--in-place", "--span", "0:3", *SHORT)
    assert ran.code == 2 and not path.exists()
    assert "two three" in ran.out


def test_result_for_a_file_changed_meanwhile_is_in_the_json(main, file, saved_meanwhile):
    path = file("one two three\n")
    saved_meanwhile(path, "else\n")
    ran = main("edit", str(path), "--in-place", "--json", "--span", "0:3", *SHORT)
    assert ran.code == 2 and path.read_text() == "else\n"
    assert json.loads(ran.out)["text"].endswith(" two three\n")


def test_in_place_follows_no_planted_link(main, file, tmp_path):
    path = file("one two three\n")
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / f".text.py.{os.getpid()}.partial").symlink_to(victim)
    assert main("edit", str(path), "--in-place", "--span", "0:3", *SHORT).code == 0
    assert victim.read_text() == "precious"
    assert not path.is_symlink() and path.read_text().endswith(" two three\n")


def test_named_pipe_is_rejected_without_waiting(main, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    ran = main("edit", str(tmp_path / "pipe"), "--span", "0:1")
    assert ran.code == 2 and "it is a named pipe, expected a regular file" in ran.err
    ran = main("generate", "a", "--grammar", str(tmp_path / "pipe"))
    assert ran.code == 2 and "it is a named pipe, expected a regular file" in ran.err
