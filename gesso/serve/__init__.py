"""`gesso serve`: an HTTP server for the APIs of OpenAI, Anthropic, Ollama and llama.cpp, and for the studio.

Three kinds of processes share the work:

- The server process (`run`, `http/`) holds connections, queues and answers on one event loop. It imports no torch.
- The prepare process (`prepare/process`) loads the tokenizers once and forks one child per request. The child parses,
  checks and tokenizes the request, or compiles its constraint, with limits on CPU time and memory.
- The engine process (`worker`), one per model, loads the weights (`startup`) and runs the denoising steps. It
  exchanges messages with the server through `pipe`.

A request passes through these modules:

1. `http/connections` limits open connections; `http/middleware` checks host, key and size; `http/app` has the handlers.
2. `models` sends the body to `prepare/pool`, where clients take turns. In the child, `prepare/endpoints` checks the
   fields (`fields`) and says what they ask for, `gesso.request.build` builds it, and `prepare/builder` encodes it.
3. `generation` queues the jobs at the `supervisor`, which starts, watches and restarts the engine process and forwards
   jobs to it (`wire`: the messages, `fair_queue`: the order, `jobs`: a job and its events).
4. `openai/`, `anthropic`, `ollama` or `llama_cpp` turns the events of the jobs into a JSON answer or a stream
   (`http/sse`). `anthropic` and `ollama` also translate the fields of their requests into those of a chat or a
   completion.

`relay` forwards the output of all processes without waiting for its reader. `settings` has all limits, `auto` chooses
precision, context and batch by the available memory, and `ray` runs replicas on a Ray cluster, which agree
on their adapters (`adapter_board`, `adapter_follower`).
docs/guides/security.md lists the attacks that the limits are made for.
"""
