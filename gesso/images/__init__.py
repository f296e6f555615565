"""Images in prompts: from a file or a URL to patches of pixels, and to the soft tokens that stand for them.

`sources` takes what a program has. `read` opens a file within `limits`, and `urls` finds the bytes of a `data:` URL.
`convert` turns a picture upright and into RGB, `process` resizes it to its budget and cuts it into patches, and
`tokens` names the soft tokens of an image in a prompt. The model turns patches into embeddings: `gesso.model.vision`.
"""
