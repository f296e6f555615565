"""Answers in the forms of OpenAI's API: chat completions, completions and responses; and two endpoints of our own.

Each endpoint is a module with two functions. `answer` returns the JSON body of a finished generation. `stream` yields
the server-sent events of a running one; decisions have none.
"""
