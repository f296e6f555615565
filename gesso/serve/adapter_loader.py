"""Load adapters into the engine process: read files in a thread of their own, and attach between two steps."""

import os
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

from gesso import adapters
from gesso.adapters import StoredAdapter
from gesso.api import Gesso
from gesso.engine.faults import drop_frames, is_fatal
from gesso.errors import GessoError
from gesso.printable import encodable
from gesso.serve.pipe import Inbox, Send
from gesso.serve.wire import AdapterFailed, AdapterLoaded, LoadAdapter


class AdapterLoader:
    def __init__(self, model: Gesso, send: Send) -> None:
        self.model, self.send = model, send
        self.thread = ThreadPoolExecutor(1)  # not the worker's side thread: requests must not wait for a slow disk

    def load(self, message: LoadAdapter, inbox: Inbox) -> None:
        """Read an adapter. The inbox then gets the call that attaches it, in the engine's thread."""
        weights = adapters.adaptable_weights(self.model.model)  # here: the thread must not read modules that may change
        reading = self.thread.submit(adapters.read, weights, Path(os.fsdecode(message.directory)))
        reading.add_done_callback(lambda done: inbox.put(partial(self._attach, message.name, done)))

    def _attach(self, name: str, read: "Future[StoredAdapter]") -> None:
        try:
            self.model.attach_adapter(name, read.result())
        except Exception as error:
            if is_fatal(error):
                raise
            drop_frames(error)
            by_input = isinstance(error, GessoError)
            message = str(error) if by_input else f"{type(error).__name__}: {error}"
            self.send(AdapterFailed(name, encodable(message), by_input))
        else:
            self.send(AdapterLoaded(name))
