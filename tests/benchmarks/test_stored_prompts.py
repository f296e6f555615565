"""The measurement of stored prompts, at a small shape."""

from benchmarks import stored_prompts
from gesso.checkpoint import random_weights
from gesso.engine.prefix_files import SUFFIX


def test_a_prompt_is_written_and_read_and_the_token_is_the_same(tmp_path):
    rows = stored_prompts.measure(random_weights.config_of("mini"), 600, tmp_path)
    assert [row.what for row in rows] == ["without files", "files are written", "files are read"]
    assert len({row.token for row in rows}) == 1 and min(row.seconds for row in rows) > 0
    assert len(list(tmp_path.glob(f"*{SUFFIX}"))) == 600 // 256
