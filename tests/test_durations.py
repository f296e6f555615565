"""The order of the test files, and the record that it comes from."""

from tests import durations

REPORT = """<testsuites><testsuite>
<testcase classname="tests.serve.test_faults" name="test_a" time="1.25"/>
<testcase classname="tests.serve.test_faults" name="test_b" time="2.25"/>
<testcase classname="tests.test_gone" name="test_c" time="9"/>
</testsuite></testsuites>"""


def test_long_files_come_first_and_servers_alternate_with_computing_files():
    seconds = {"s1": 30, "s2": 20, "s3": 10, "c1": 300, "c2": 200, "c3": 100}
    files = [*reversed(seconds), "new"]
    ordered = durations.order(files, seconds, starts_server=lambda file: file.startswith("s"))
    assert [file for file in ordered if file[0] == "s"] == ["s1", "s2", "s3"]
    assert [file for file in ordered if file[0] == "c"] == ["c1", "c2", "c3"]
    assert [{file[1] for file in ordered[at : at + 2]} for at in (0, 2, 4)] == [{"1"}, {"2"}, {"3"}]
    assert ordered[-1] == "new"


def test_durations_are_recorded_per_file_and_files_that_are_gone_are_forgotten(tmp_path):
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    before = {"serve/test_faults.py": 9.0, "serve/test_relay.py": 2.0, "serve/test_removed.py": 5.0}
    assert durations.updated(before, [report]) == {"serve/test_faults.py": 3.5, "serve/test_relay.py": 2.0}
