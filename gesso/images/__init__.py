"""Images in prompts: from a file or a URL to patches of pixels, and to the soft tokens that stand for them.

`read` opens a file, `urls` finds the bytes of a URL, `process` resizes the picture and cuts it into patches, and
`tokens` names the soft tokens of an image in a prompt. The model turns patches into embeddings: `gesso.model.vision`.
"""
