"""Compile a JSON schema to a regular expression, in two stages.

1. `reader` follows references and applicators (`allOf`, `anyOf`, `oneOf`) and returns alternatives of plain `facts`.
   `keywords` reads the other keywords of each subschema.
2. `compile` writes the facts as a regular expression: `numbers`, `patterns` and `formats` for scalars, `dialects` for
   strings in JSON or in a tool call.

Unsupported keywords and combinations are rejected with their JSON pointer.
"""
