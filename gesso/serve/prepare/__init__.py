"""Parse, check and tokenize requests in child processes with limits on CPU time and memory.

A client chooses the size of this work, so none of it runs on the server's event loop. The outcome is bounded by the
context.
"""
