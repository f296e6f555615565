"""Constraints on generated text: a regular expression, a JSON schema, a choice, a grammar, or tool calls.

`constraint` is the entry point: it compiles each constraint of a caller once, and keeps the result.

1. Every constraint becomes a regular expression: `schema`, `grammar`, `tools`; `regex` and `charset` build expressions.
2. The expression becomes an automaton over bytes: `automaton`, and `compiler` in a child process within `limits`.
3. `words` holds the bytes of each token, and `guide` the moves of tokens through the automaton.
4. For one request, `reach` finds the states from which the text can still be completed, with its length and pins, and
   `search` finds the most likely text that matches.
"""
