"""Compile a JSON schema to a term, in two stages.

1. `reader` follows references and applicators (`allOf`, `anyOf`, `oneOf`, `if`, `not`) and returns alternatives of plain
   `facts`. `keywords` reads the other keywords of each subschema, `references` finds the targets of references,
   `negation` the values that do not satisfy a subschema, and `validity` drops values of an enum that are not valid.
2. `compile` writes the facts as terms: `strings`, `formats`, `numbers` and `multiples` for scalars, `arrays` and
   `objects`, and `dialects` for strings in JSON or in a tool call.

Assertions that a term cannot express are listed, and the finished answer is checked for them.
"""
