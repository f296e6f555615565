"""The hook of Schemathesis that `tools.clients.fuzz` installs."""

from typing import Any

import schemathesis

from tools.clients.fuzz import lower_steps


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    lower_steps(case.body)
