"""Constraints on generated text: a regular expression, a JSON schema, a choice, a grammar, or tool calls.

`constraint` is the entry point: it compiles each constraint of a caller once, and keeps the result.

1. Every constraint becomes a term, which describes a set of texts: `regex`, `schema`, `grammar`, `tools`. `term`
   defines terms, `terms` makes them, and `settle` measures recursive ones. `limits` and `budget` bound size and time.
2. A term is the first state of an `automaton` over bytes, whose other states are made when a text reaches them.
3. `words` holds the bytes of each token, and `guide` the moves of tokens through the automaton.
4. For one request, `reach` finds the states from which the text can still be completed, with its length and pins, and
   `search` finds the most likely text that matches. `validate` checks the finished answer.

`thinking` and `free_calls` let a constraint begin in the middle of a text. `stored` sends terms to another process.
"""
