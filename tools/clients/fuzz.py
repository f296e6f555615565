"""Send requests of Schemathesis to every endpoint of a server with a tiny random model, and fail at a server error.

    python -m tools.clients.fuzz --count 50

The requests are made from the OpenAPI description, in accord with it and against it. `--count` is the most random ones
per endpoint; systematic ones come in addition. Absent endpoints answer with 501 and are not part of the description.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from gesso.bench.server import running_server

OPTIONS = (
    *("--checks", "not_a_server_error"),
    *("--suppress-health-check", "all"),
    "--generation-deterministic",
    "--no-color",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=50, help="random requests per endpoint")
    count = parser.parse_args().count
    from tests.tiny import make

    with tempfile.TemporaryDirectory(prefix="gesso-") as directory:
        model = make(Path(directory) / "model", sees=True)
        with running_server("--device", "cpu", "--model", str(model), "--max-length", "600") as server:
            server.wait_ready()
            program = Path(sys.executable).with_name("schemathesis")
            command = [program, "run", f"{server.url}/openapi.json", *OPTIONS, "--max-examples", str(count)]
            sys.exit(subprocess.run(command, cwd=directory).returncode)


if __name__ == "__main__":
    main()
