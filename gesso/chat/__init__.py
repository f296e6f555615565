"""Conversations as text and tokens, in both directions.

From messages to tokens: `messages` checks a conversation and its tools, `template` renders it with the checkpoint's
Jinja template in a sandbox, and `tokenizer` encodes the text. `chat_template.jinja` is the default template.

From tokens to an answer: `tokenizer` decodes the ids, and `answer` splits the text into the text to show, thoughts and
tool calls. `answer` also formats tool calls in the model's own syntax.
"""
