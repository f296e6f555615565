"""Pages in a real browser: those of other origins reach nothing, and those of an allowed origin reach the API."""

import json
from collections import Counter

import pytest

from tests.studio import visiting

pytestmark = pytest.mark.browser
pytest.importorskip("playwright.sync_api", reason="pip install playwright")

STAINLESS = ("lang", "package-version", "os", "arch", "runtime", "runtime-version", "retry-count", "timeout", "helper")
HEADERS = {
    "Authorization": "Bearer none",
    "x-api-key": "none",
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "structured-outputs",
    "anthropic-dangerous-direct-browser-access": "true",
    "openai-organization": "o",
    "openai-project": "p",
    "x-requested-with": "fetch",
    **{f"x-stainless-{name}": "1" for name in STAINLESS},
}
CALL = """async ([url, headers, body]) => {
  const answer = await fetch(url, {method: "POST", headers: {...headers, "Content-Type": "application/json"}, body});
  return [answer.status, await answer.json()];
}"""
# Every way in which a page can send a body to another origin without asking. A Blob has no type unless it is given.
ATTACKS = """async ([base, paths, stored, body]) => {
  const types = ["", "application/x-www-form-urlencoded", "text/plain", "multipart/form-data"];
  const post = (url, options) => fetch(url, {method: "POST", ...options}).catch(() => {});
  const framed = (attributes, html) => new Promise((resolve) => {
    const onload = () => setTimeout(resolve, 50);
    const frame = Object.assign(document.createElement("iframe"), {srcdoc: html, onload});
    for (const [name, value] of Object.entries(attributes)) frame.setAttribute(name, value);
    document.body.append(frame);
  });
  const attack = async (url) => {
    for (const type of types) {
      const blob = new Blob([body], {type});
      for (const mode of ["no-cors", "cors"])
        for (const referrerPolicy of ["no-referrer", "unsafe-url"])
          await post(url, {mode, body: blob, referrerPolicy});
      navigator.sendBeacon(url, blob);
    }
    await post(url, {mode: "no-cors", body: new URLSearchParams([[body, ""]])});
    await post(url, {body, headers: {"Content-Type": "application/json"}});
    await post(url, {body, headers: {"User-Agent": "curl/8"}});
    for (const enctype of ["application/x-www-form-urlencoded", "text/plain"]) {
      const html = `<meta name="referrer" content="no-referrer"><form method="post" enctype="${enctype}"
        action="${url}"><input name='{"stream": false, "a' value='": 1}'></form>
        <script>document.forms[0].submit()</script>`;
      await framed({}, html);
      await framed({sandbox: "allow-scripts allow-forms"}, html);
    }
  };
  await Promise.all(paths.map((path) => attack(base + path)));
  await fetch(base + stored, {method: "DELETE"}).catch(() => {});
}"""


def test_a_page_of_an_allowed_origin_may_send_the_headers_of_official_clients(browser, studio, page_port):
    body = json.dumps({"messages": [{"role": "user", "content": "Hello"}]})
    with visiting(browser, f"http://127.0.0.1:{page_port}", may_complain=True) as page:
        for path in ("/tokenize", "/v1/messages/count_tokens"):
            status, answer = page.evaluate(CALL, [studio.url + path, HEADERS, body])
            assert status == 200, answer


def requests(server):
    """Return the log lines of the requests that have ended."""
    lines = [json.loads(line) for line in server.log.read_text().splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == "request"]


def test_no_page_of_another_origin_reaches_an_endpoint(browser, studio, page_port):
    described = studio.http.get("/openapi.json").json()["paths"]
    paths = [path for path, methods in described.items() if "post" in methods]
    body = {"input": "Hello", "max_output_tokens": 1}
    stored = f"/v1/responses/{studio.http.post('/v1/responses', json=body).json()['id']}"
    before = len(requests(studio))
    with visiting(browser, f"http://localhost:{page_port}", may_complain=True) as page:
        page.evaluate(ATTACKS, [studio.url, paths, stored, '{"stream": false}'])
    # The preflights of the others are refused before the log.
    sent = [line for line in requests(studio)[before:] if line["method"] != "GET"]
    posted = Counter(line["path"] for line in sent if line["method"] == "POST")
    assert min(posted[path] for path in paths) >= 17  # the others are not waited for
    for line in sent:
        assert 400 <= line["status"] < 500, line
        assert line.get("code") == "adapters_disabled" or line["reason"].startswith("send the body as JSON"), line
    assert studio.http.get(stored).status_code == 200
