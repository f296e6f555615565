"""Images in the chat: added, reduced, sent, saved as thumbnails, and refused."""

import base64
import contextlib
import io
import json

import pytest
from PIL import Image

from tests.studio import (
    CLIPBOARD,
    CLIPPED,
    PATIENCE,
    WIDTH,
    answering,
    copied,
    curl_arguments,
    finished,
    said,
    serious_violations,
    setting,
    visiting,
)  # fmt: skip

pytestmark = pytest.mark.browser
expect = pytest.importorskip("playwright.sync_api", reason="pip install playwright").expect
expect.set_options(timeout=PATIENCE)

MODELS = [{"id": "seeing", "vision": True}, {"id": "blind", "vision": False}, {"id": "older"}]
NAME = '"><img src=x onerror="window.hurt=1">.png'
UPRIGHT = 6  # EXIF: the camera was turned by 90 degrees
ORIENTATION = 0x0112
PIXELS_PER_TOKEN = 48 * 48
# Gives files to an element, as a drop or a paste does. Playwright cannot.
GIVE = """(element, {how, files, texts}) => {
  const data = new DataTransfer();
  for (const { name, type, content } of files) {
    data.items.add(new File([Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0))], name, { type }));
  }
  for (const type of texts) data.setData(type, "text");
  const options = { bubbles: true, cancelable: true, dataTransfer: data, clipboardData: data };
  return !element.dispatchEvent(how === "paste" ? new ClipboardEvent(how, options) : new DragEvent(how, options));
}"""


def picture(width: int = 60, height: int = 40, format: str = "PNG", mode: str = "RGB", **options) -> bytes:
    """Return a file with a picture whose left half is red, and whose right half is blue or transparent."""
    image = Image.new(mode, (width, height), "red")
    image.paste((0, 0, 255, 0)[: len(mode)], (width // 2, 0, width, height))
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def of(name: str, content: bytes) -> dict:
    """Return a file as Playwright takes it."""
    return {"name": name, "mimeType": f"image/{name.rsplit('.')[-1]}", "buffer": content}


@contextlib.contextmanager
def chatting(browser, url: str, **options):
    """Open the chat of a server with models that see images, and others."""
    options |= {"viewport": {"width": 1280, "height": 800}, "reduced_motion": "reduce", **CLIPBOARD}
    with visiting(browser, "about:blank", **options) as page:
        page.route("**/v1/models", lambda route: route.fulfill(json={"data": MODELS}))
        page.goto(url)
        expect(page.get_by_role("button", name="Add images")).to_be_visible()
        yield page.locator("chat-view")


@pytest.fixture
def view(browser, studio_files):
    with chatting(browser, studio_files) as view:
        yield view


def choose(view, *files: dict) -> None:
    before = view.locator(".tray li").count()
    view.locator(".composer input[type=file]").set_input_files(files)
    expect(view.locator(".tray li")).to_have_count(before + len(files))


def give(view, how: str, *files: dict, texts: tuple[str, ...] = ()) -> bool:
    """Drop or paste files. Return whether the browser's own action was prevented."""
    given = [{"name": file["name"], "type": file["mimeType"], "content": base64.b64encode(file["buffer"]).decode()}
             for file in files]  # fmt: skip
    target = view.get_by_label("Message", exact=True)
    return target.evaluate(GIVE, {"how": how, "files": given, "texts": texts})


def send(view, text: str = "") -> None:
    view.get_by_label("Message", exact=True).fill(text)
    view.page.keyboard.press("Enter")
    view.get_by_role("button", name="Retry").last.wait_for()
    finished(view)


def kept(page) -> list[dict]:
    return json.loads(page.evaluate("() => localStorage.getItem('gesso.conversations')"))["conversations"]


def bytes_of(part: dict) -> bytes:
    head, content = part["image_url"]["url"].split(",")
    assert head.startswith("data:image/") and head.endswith(";base64")
    return base64.b64decode(content)


# --- adding and sending -----------------------------------------------------------------------------------------------


def test_dropped_pasted_and_chosen_images_are_sent_unchanged_before_the_text(view):
    asked = answering(view.page, said())
    files = [of("a.png", picture(8, 6)), of("b.jpeg", picture(9, 6, "JPEG")), of("c.webp", picture(7, 6, "WEBP"))]
    assert give(view, "dragover", files[0]) and give(view, "drop", files[0]) and give(view, "paste", files[1])
    expect(view.locator(".tray li")).to_have_count(2)
    choose(view, files[2])
    view.get_by_label("Detail").select_option("560 tokens")
    expect(view.get_by_role("status")).to_have_text("3 images, at most 1680 tokens")
    send(view, "What is this?")
    *parts, text = asked[0]["messages"][0]["content"]
    assert text == {"type": "text", "text": "What is this?"}
    assert [(part["type"], part["tokens"]) for part in parts] == [("image_url", 560)] * 3
    assert [bytes_of(part) for part in parts] == [file["buffer"] for file in files]
    expect(view.locator(".tray li")).to_have_count(0)
    assert [image.get_attribute("alt") for image in view.locator(".message img").all()] == ["a.png", "b.jpeg", "c.webp"]


def test_text_with_a_picture_of_itself_is_pasted_as_text(view):
    """Office programs copy both. A file manager copies a file and its name, which is not a message."""
    assert not give(view, "paste", of("a.png", picture()), texts=("text/plain", "text/html"))
    assert not give(view, "paste", texts=("text/plain",))
    assert give(view, "paste", of("b.png", picture()), texts=("text/plain",))
    expect(view.locator(".tray img")).to_have_attribute("alt", "b.png")


def test_a_message_may_be_an_image_alone_and_is_sent_with_every_later_request(view):
    asked = answering(view.page, said())
    choose(view, of(NAME, picture()))
    send(view)
    view.get_by_role("button", name="New").click()
    view.get_by_role("button", name=NAME, exact=True).click()
    send(view, "And its colour?")
    first, second = ([message["content"] for message in body["messages"]] for body in asked)
    assert [part["tokens"] for part in first[0]] == [280] and second[0] == first[0] and second[2] == "And its colour?"
    assert kept(view.page)[0]["title"] == NAME[:60]
    assert view.page.evaluate("() => window.hurt") is None


def test_an_image_that_is_still_being_read_is_part_of_the_message(view):
    asked = answering(view.page, said())
    view.get_by_label("Message", exact=True).fill("What is this?")
    give(view, "drop", of("large.png", picture(3000, 2000)))
    view.page.keyboard.press("Enter")
    view.page.keyboard.press("Enter")
    view.get_by_role("button", name="Retry").wait_for()
    assert [[part["type"] for part in body["messages"][0]["content"]] for body in asked] == [["image_url", "text"]]


def test_large_pictures_are_reduced_to_four_times_the_pixels_of_their_detail(view):
    asked = answering(view.page, said())
    turned = Image.Exif()
    turned[ORIENTATION] = UPRIGHT
    choose(
        view,
        of("photo.jpeg", picture(2400, 1600, "JPEG", exif=turned)),
        of("screen.png", picture(2400, 1600, mode="RGBA")),
    )
    view.get_by_label("Detail").select_option("70 tokens")
    send(view)
    photo, screen = (Image.open(io.BytesIO(bytes_of(part))) for part in asked[0]["messages"][0]["content"])
    assert (photo.format, screen.format) == ("JPEG", "PNG")
    for image in (photo, screen):
        assert image.width * image.height == pytest.approx(4 * 70 * PIXELS_PER_TOKEN, rel=0.01)
    assert photo.height / photo.width == screen.width / screen.height == pytest.approx(1.5, rel=0.01)
    assert ORIENTATION not in photo.getexif()
    colours = [photo.getpixel((20, 20)), photo.getpixel((20, photo.height - 20))]
    colours += [screen.convert("RGB").getpixel((x, 20)) for x in (20, screen.width - 20)]
    expected = [(255, 0, 0), (0, 0, 255), (255, 0, 0), (255, 255, 255)]
    assert all(abs(a - b) < 8 for pair in zip(colours, expected, strict=True) for a, b in zip(*pair, strict=True))


def test_formats_that_only_the_browser_reads_become_jpeg(view):
    asked = answering(view.page, said())
    choose(view, of("a.svg+xml", b'<svg xmlns="http://www.w3.org/2000/svg" width="60" height="40"/>'))
    send(view)
    (part,) = asked[0]["messages"][0]["content"]
    image = Image.open(io.BytesIO(bytes_of(part)))
    assert (image.format, image.size) == ("JPEG", (60, 40))


# --- removing and saving ----------------------------------------------------------------------------------------------


def test_images_are_removed_by_keyboard_and_the_focus_stays_near(view):
    asked = answering(view.page, said())
    choose(view, of("a.png", picture()), of("b.png", picture(8, 8)), of("c.png", picture()))
    view.get_by_role("button", name="Remove image 3, c.png").press("Enter")
    expect(view.get_by_role("button", name="Remove image 2, b.png")).to_be_focused()
    view.get_by_role("button", name="Remove image 1, a.png").press("Enter")
    expect(view.get_by_role("button", name="Remove image 1, b.png")).to_be_focused()
    send(view, "Hello")
    image, _ = asked[0]["messages"][0]["content"]
    assert bytes_of(image) == picture(8, 8)
    choose(view, of("d.png", picture()))
    view.get_by_role("button", name="Remove image 1, d.png").press("Enter")
    expect(view.get_by_role("button", name="Add images")).to_be_focused()
    expect(view.get_by_label("Detail")).to_be_hidden()


def test_only_thumbnails_are_saved_and_the_conversation_says_so(view):
    asked = answering(view.page, said())
    noise = Image.effect_noise((900, 700), 100)
    file = io.BytesIO()
    noise.save(file, "PNG")
    choose(view, of("noise.png", file.getvalue()))
    send(view, "What is this?")
    note = view.get_by_text("Only thumbnails are saved")
    expect(note).to_have_count(0)
    assert len(file.getvalue()) > 500_000
    assert len(json.dumps(kept(view.page))) < 20_000
    view.page.reload()
    expect(view.locator(".message img")).to_have_js_property("complete", True)
    assert view.locator(".message img").evaluate("e => e.naturalWidth * e.naturalHeight") <= 128 * 128
    expect(note).to_be_visible()
    send(view, "And now?")
    assert [message["content"] for message in asked[1]["messages"]][::2] == ["What is this?", "And now?"]


def test_import_rejects_malformed_images(view, tmp_path):
    for i, images in enumerate((5, [None], [{"name": "a.png"}], [{"name": "a", "thumbnail": "//other.host/a.png"}])):
        path = tmp_path / f"{i}.json"
        messages = [{"role": "user", "content": "", "images": images}]
        path.write_text(json.dumps({"version": 1, "conversations": [{"id": "1", "title": "t", "messages": messages}]}))
        view.locator(".side input[type=file]").set_input_files(path)
        expect(view.locator(".talk > .complaint")).to_contain_text(f"{i}.json has no conversations")


def test_copied_requests_have_the_beginning_of_each_image(view):
    answering(view.page, said())
    choose(view, of("large.png", picture(3000, 2000)))
    for _ in range(2):  # before and after it is sent
        body = json.loads(curl_arguments(copied(view, "Copy as curl"))[-1])
        (part,) = body["messages"][0]["content"]
        url = part["image_url"]["url"]
        assert url.startswith("data:image/png;base64,iVBOR") and url.endswith("…") and len(url) < 100
        assert url in copied(view, "Copy as Python")
        if view.locator(".tray li").count():
            send(view)


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_a_model_that_sees_no_images_is_not_sent_any(view):
    asked, complaint = answering(view.page, said()), view.locator(".tray .complaint")
    add, picker = view.get_by_role("button", name="Add images"), view.page.get_by_label("Model", exact=True)
    choose(view, of("a.png", picture()))
    for model in ("blind", "older"):
        picker.select_option(model)
        expect(add).to_be_hidden()
        expect(complaint).to_have_text("")
        view.get_by_label("Message", exact=True).fill("What is this?")
        view.page.keyboard.press("Enter")
        expect(complaint).to_have_text(f"{model} sees no images. Choose another model, or send text only.")
        expect(view.get_by_label("Message", exact=True)).to_have_value("What is this?")
    view.get_by_role("button", name="Remove image 1").click()
    send(view, "Hello")
    expect(complaint).to_have_text("")
    give(view, "drop", of("b.png", picture()))
    expect(complaint).to_contain_text("older sees no images")
    expect(view.locator(".tray li")).to_have_count(0)
    assert [body["messages"][0]["content"] for body in asked] == ["Hello"]
    picker.select_option("seeing")
    expect(add).to_be_visible()


def test_images_are_offered_as_soon_as_the_engine_knows_that_it_sees_them(view):
    state = {"engine": "loading", "vision": False}
    view.page.route("**/health", lambda route: route.fulfill(json={"engine": state["engine"]}))
    view.page.route(
        "**/v1/models", lambda route: route.fulfill(json={"data": [{"id": "slow", "vision": state["vision"]}]})
    )
    view.page.reload()
    add = view.get_by_role("button", name="Add images", include_hidden=True)
    expect(view.page.locator("#status")).to_have_text("loading")
    expect(add).to_be_hidden()
    state |= {"engine": "ready", "vision": True}
    expect(add).to_be_visible()


def test_files_that_are_no_images_are_named_and_the_others_are_added(view):
    wrong = [of("notes.txt", b"Hello"), of("broken.png", picture()[:40]), of("empty.png", b"")]
    wrong[0]["mimeType"] = "text/plain"
    assert give(view, "drop", wrong[0], of("a.png", picture()), *wrong[1:])
    expect(view.locator(".tray li")).to_have_count(1)
    for file in wrong:
        expect(view.locator(".tray .complaint")).to_contain_text(f"{file['name']} is not an image")


def test_a_rejected_image_is_reported_at_the_message(browser, studio_files):
    """A rejected request is an error in the browser's console, too."""
    reason = "messages[0].content[0]: the file is truncated"
    with chatting(browser, studio_files, may_complain=True) as view:
        answer = {"status": 400, "json": {"error": {"message": reason}}}
        view.page.route("**/v1/chat/completions", lambda route: route.fulfill(**answer))
        choose(view, of("a.png", picture()))
        send(view, "What is this?")
        expect(view.locator(".message.assistant .complaint")).to_have_text(reason)


# --- screens and accessibility ----------------------------------------------------------------------------------------


def test_images_fit_a_small_screen_and_have_no_serious_axe_violation(view):
    answering(view.page, said())
    view.page.set_viewport_size({"width": 360, "height": 740})
    view.page.emulate_media(color_scheme="light")
    files = [of("wide.png", picture(4000, 50)), of("high.png", picture(50, 4000)), *[of("a.png", picture())] * 6]
    choose(view, *files)
    send(view)
    choose(view, *files)
    give(view, "drop", of("broken.png", b""))
    expect(view.locator(".tray .complaint")).to_be_visible()
    assert view.page.evaluate(WIDTH) <= 360 and view.evaluate(CLIPPED) == []
    assert serious_violations(view.page) == []
    view.page.emulate_media(color_scheme="dark")
    assert serious_violations(view.page, ["color-contrast"]) == []


# --- a server ---------------------------------------------------------------------------------------------------------


def test_a_server_answers_about_the_images_of_the_chat(browser, seeing_server):
    before = seeing_server.metric("gesso_images_total")
    with visiting(browser, seeing_server.url) as page:
        view = page.locator("chat-view")
        setting(view, {"Seed": 1, "Longest answer": 8, "Steps": 2})
        choose(view, of("a.png", picture()), of("b.jpeg", picture(900, 700, "JPEG")))
        send(view, "What is this?")
        expect(view.locator(".message.assistant .complaint")).to_have_count(0)
    assert seeing_server.metric("gesso_images_total") == before + 2
