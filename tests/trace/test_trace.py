"""Traces: complete, self-contained, and safe with hostile text."""

import base64
import hashlib
import json
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest

from gesso.trace import html, svg
from gesso.trace.layout import picture
from gesso.trace.run import CANDIDATES, TracedRun, recorded
from tests.studio import visiting

HOSTILE = "</script><!--<script><img src=x onerror='window.hurt=1'>&amp;\n</svg>"


@pytest.fixture(scope="module")
def run(tiny):
    """A run of two canvases of the tiny model after a hostile prompt."""
    drafts = []
    options = {"max_new_tokens": 24, "canvas_length": 16, "steps": 5, "seed": 3, "draft_logprobs": CANDIDATES}
    *_, done = recorded(tiny, tiny.stream(HOSTILE, **options), drafts)
    return TracedRun(HOSTILE, drafts, done.result)


def test_a_run_has_every_step(run):
    assert len(run.drafts) == run.result.usage.denoising_steps > 1
    assert all(len(draft["candidates"]) == len(draft["tokens"]) for draft in run.drafts)
    ends = [draft for draft in run.drafts if draft["reason"]]
    assert [token for draft in ends for token in draft["tokens"]][: len(run.result.tokens)] == list(run.result.tokens)


class Attributes(HTMLParser):
    """Collects the tags of a page and the names of their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.tags, self.names = set(), set()

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.names |= {name for name, _ in attributes}


def test_a_page_loads_nothing_and_runs_only_its_own_script(run):
    page = html.page(run)
    parser = Attributes()
    parser.feed(page)
    assert parser.tags >= {"html", "style", "script", "run-panel"}
    assert not parser.names & {"src", "href", "action", "data", "style", "onerror"} and "img" not in parser.tags
    assert not re.search(r"@import|url\(", re.search(r"(?s)<style>(.*?)</style>", page)[1])
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    script = re.search(r'(?s)<script type="module">(.*?)</script>', page)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy and "default-src 'none'" in policy
    assert page.count("</script>") == 2, "only those of the data and the module, none of the prompt"


def test_modules_of_a_page_have_distinct_names(run):
    """In the joined module, a repeated name would be an error or hide another."""
    script = html.joined({name: html.files()[name].decode() for name in html.MODULES})
    names = re.findall(r"(?m)^(?:async )?(?:function\*?|class|const|let) (\w+)", script)
    assert len(names) == len(set(names)) > 10
    assert not re.search(r"(?m)^(import|export)\b", script)


def test_the_last_frame_shows_the_text(run):
    drawn = picture(run)
    at_the_end = {(g.row, g.column): g for g in drawn.spans if g.end == drawn.frames}
    assert len(at_the_end) == len(run.result.tokens)
    for row, column in at_the_end:
        seen = sorted((g.start, g.end) for g in drawn.spans if (g.row, g.column) == (row, column))
        assert all(before[1] == after[0] for before, after in zip(seen, seen[1:], strict=False)), "no gap, no overlap"


def test_an_svg_with_hostile_text_is_well_formed(run):
    root = ElementTree.fromstring(svg.svg(run))
    texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text") if node.get("class") == "given"]
    assert "\n".join(texts) == HOSTILE
    assert not list(root.iter("{http://www.w3.org/2000/svg}script"))


def test_a_gif_has_one_frame_per_step(run, tmp_path):
    from PIL import Image

    from gesso.trace import gif

    gif.write(run, tmp_path / "run.gif")
    with Image.open(tmp_path / "run.gif") as picture:
        shown = sum(1 for _ in range(picture.n_frames))
    same = sum(not _differs(run, i) for i in range(1, len(run.drafts)))
    assert len(run.drafts) - same <= shown <= len(run.drafts), "Pillow joins equal frames"


def _differs(run: TracedRun, frame: int) -> bool:
    return any(frame in (g.start, g.end) for g in picture(run).spans)


def test_the_file_name_selects_the_format(main, tiny_directory, tmp_path):
    options = ("-m", str(tiny_directory), "--max-new-tokens", "8", "--steps", "3", "--seed", "1", "--json")
    for name, beginning in (("run.html", "<!doctype html>"), ("run.svg", "<svg ")):
        out = main("trace", "Hello", "-o", str(tmp_path / name), *options)
        assert out.code == 0, out.err
        assert json.loads(out.out)["seed"] == 1
        assert (tmp_path / name).read_text(encoding="utf-8").startswith(beginning)


@pytest.mark.parametrize("name", ["run.png", "run", "nowhere/run.html"])
def test_an_invalid_output_file_is_rejected_before_loading(main, tmp_path, name):
    out = main("trace", "Hello", "-o", str(tmp_path / name), "-m", "no/such/model/anywhere")
    assert out.code == 2 and "model" not in out.err


@pytest.mark.browser
def test_a_page_plays_in_a_browser(run, browser, tmp_path):
    from playwright.sync_api import expect

    (tmp_path / "run.html").write_text(html.page(run), encoding="utf-8")
    with visiting(browser, (tmp_path / "run.html").as_uri()) as page:
        slider = page.get_by_label("Step", exact=True)
        expect(slider).to_have_js_property("value", str(len(run.drafts) - 1))
        assert page.locator("[role=option]").count() == sum(len(d["tokens"]) for d in run.drafts if d["reason"])
        assert page.locator("canvas-view .given").first.text_content() == HOSTILE
        assert page.evaluate("() => window.hurt") is None
