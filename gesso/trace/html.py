"""A run as a self-contained HTML page: the studio's canvas view, its styles and the data in one file.

The page's policy allows only this script and these styles, by their hashes, and no network access.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping

from gesso.serve.studio_files import files
from gesso.trace.run import TracedRun

STYLES = ("base.css", "canvas.css", "graph.css", "trace.css")
# In the order of their imports, because they are joined into one module.
MODULES = (
    "dom.js", "recording.js", "canvas-view.js", "timeline.js", "inspector.js", "graph.js", "run-panel.js", "trace.js",
)  # fmt: skip


def page(run: TracedRun) -> str:
    contents = files()
    script = joined({name: contents[name].decode() for name in MODULES})
    style = "\n".join(contents[name].decode() for name in STYLES)
    data = {"prompt": run.prompt, "drafts": run.drafts, "seed": run.result.seed, "finish": run.result.finish_reason}
    # Only "<" could end the script element or open a comment in it.
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
    """Join modules into one by removing their imports of each other and their exports."""
    bodies = []
    for text in modules.values():
        text = re.sub(r"(?m)^import [^;]*;\n", "", text)
        bodies.append(re.sub(r"(?m)^export (?=(?:async )?(?:function|class|const|let)\b)", "", text))
    return "\n".join(bodies)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
