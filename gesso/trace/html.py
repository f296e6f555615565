"""One self-contained page with the studio's own canvas view: its modules, styles and the run, all in one file.

The page may run this script and use these styles, named by their hashes, and reach nothing at all.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping

from gesso.serve.studio_files import files
from gesso.trace.run import Run

STYLES = ("base.css", "canvas.css", "trace.css")
# In the order of their imports: joined, they are one module.
MODULES = ("dom.js", "recording.js", "canvas-view.js", "timeline.js", "inspector.js", "run-panel.js", "trace.js")


def page(run: Run) -> str:
    held = files()
    script = joined({name: held[name].decode() for name in MODULES})
    style = "\n".join(held[name].decode() for name in STYLES)
    data = {"prompt": run.prompt, "drafts": run.drafts, "seed": run.result.seed, "finish": run.result.finish_reason}
    # In a script element only "<" could end it, or open a comment.
    encoded = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    title = html.escape(f"Gesso: {run.prompt.strip()[:60]}")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main><h1>Gesso</h1><run-panel></run-panel></main>
<script type="application/json" id="run">{encoded}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def joined(modules: Mapping[str, str]) -> str:
    """Several modules as one: without their imports of each other, and without exports."""
    bodies = []
    for text in modules.values():
        text = re.sub(r"(?m)^import [^;]*;\n", "", text)
        bodies.append(re.sub(r"(?m)^export (?=(?:async )?(?:function|class|const|let)\b)", "", text))
    return "\n".join(bodies)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
