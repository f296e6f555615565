"""The graphs example: exact properties, questions that can be met, separate splits, training rows, baselines."""

import itertools
import json
import lzma
import random
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest

from examples.graphs import baselines, data, picture
from examples.graphs import graph as graphs
from examples.graphs.families import FAMILIES, LEVELS, draw_graph, lettered
from examples.graphs.requirements import CHECKS, holds, parsed
from examples.graphs.task import CANVAS, Easy, Graphs, Hard, Medium
from examples.graphs.text import as_json, dot, edge_list, edges_in_draft, read_rows, rows
from gesso.bundled import directory
from gesso.chat.tokenizer import Tokenizer
from gesso.errors import InputError
from gesso.eval.evaluate import evaluate
from gesso.eval.task import Checkable
from gesso.train import recipe

RECIPE = Path(__file__).parents[2] / "examples/graphs/graphs.toml"
PATH = graphs.from_edges(5, [(0, 1), (1, 2), (2, 3)])  # and a single vertex
BOWTIE = graphs.from_edges(5, [(0, 1), (1, 2), (0, 2), (2, 3), (3, 4), (2, 4)])


@pytest.fixture(scope="module")
def items():
    return list(Graphs().items("train", 60, 0))


@pytest.fixture(scope="module")
def test_items():
    return list(Graphs().items("test", 12, 0))


# --- properties and requirements --------------------------------------------------------------------------------------


def test_properties_equal_their_definitions_on_random_graphs():
    """Compare with definitions over all colourings, all orders of the vertices and all paths."""
    rng = random.Random(1)
    for _ in range(40):
        n = rng.randint(4, 6)
        graph = graphs.from_edges(n, [pair for pair in itertools.combinations(range(n), 2) if rng.random() < 0.4])
        joined = {frozenset(pair) for pair in graphs.edges(graph)}
        length = {(u, v): 0 if u == v else 1 if frozenset((u, v)) in joined else 99 for u in range(n) for v in range(n)}
        for k, u, v in itertools.product(range(n), repeat=3):
            length[u, v] = min(length[u, v], length[u, k] + length[k, v])
        longest = max(length.values())
        assert graphs.diameter(graph) == (longest if longest < 99 else None)
        assert all(graphs.distances(graph, u).get(v, 99) == min(length[u, v], 99) for u, v in length)
        assert graphs.components(graph) == len({frozenset(v for v in range(n) if length[u, v] < 99) for u in range(n)})
        triples = itertools.combinations(range(n), 3)
        assert graphs.triangles(graph) == sum(
            {frozenset(p) for p in itertools.combinations(t, 2)} <= joined for t in triples
        )
        colours = next(
            k for k in range(1, n + 1)
            if any(all(c[u] != c[v] for u, v in graphs.edges(graph)) for c in itertools.product(range(k), repeat=n))
        )  # fmt: skip
        assert graphs.chromatic_number(graph) == colours
        assert graphs.has_hamiltonian_path(graph) == any(
            all(frozenset(pair) in joined for pair in itertools.pairwise(order))
            for order in itertools.permutations(range(n))
        )


@pytest.mark.parametrize(
    ("requirement", "on_path", "on_bowtie"),
    [
        ("vertices: 5", True, True),
        ("edges: 6", False, True),
        ("degrees: 2 2 4 2 2", False, True),
        ("connected", False, True),
        ("components: 2", True, False),
        ("bipartite", True, False),
        ("triangles: 2", False, True),
        ("distance a d: 3", True, False),
        ("distance a e: 2", False, True),
        ("distance a f: 2", False, False),  # there is no f
        ("diameter: 2", False, True),
        ("colours: 1 2 1 2 1", True, False),
        ("colours: 1 2 3 1 2", True, True),
        ("colours: 1 2 3", False, False),
        ("chromatic number: 3", False, True),
        ("Hamiltonian path", False, True),
    ],
)
def test_a_requirement_holds_exactly_for_the_graphs_that_meet_it(requirement, on_path, on_bowtie):
    assert (holds(requirement, PATH), holds(requirement, BOWTIE)) == (on_path, on_bowtie)


@pytest.mark.parametrize("line", ["planar", "edges", "edges: many", "distance a: 3", "connected: 1", "degrees:", ""])
def test_an_unknown_requirement_is_rejected(line):
    with pytest.raises(InputError, match="unknown requirement"):
        parsed(line)


# --- questions --------------------------------------------------------------------------------------------------------


def test_every_question_is_met_by_the_graph_that_it_was_made_from(items):
    assert all(Graphs().score(item, item.expected) == {"valid": 1, "share": 1, "parses": 1} for item in items)
    names = {parsed(line)[0] for item in items for line in item.meta["requirements"]}
    assert names == CHECKS.keys()


def test_levels_have_their_sizes_and_the_task_has_all_of_them():
    for task, name in ((Easy(), "easy"), (Medium(), "medium"), (Hard(), "hard")):
        for item in task.items("validation", 3, 1):
            low, high = LEVELS[name].vertices
            assert item.name.startswith(name) and low <= len(read_rows(item.expected)) <= high
    assert [item.name.split("/")[0] for item in Graphs().items("train", 4, 0)] == ["easy", "medium", "hard", "easy"]


def test_splits_share_no_degree_sequence_and_no_question(items, test_items):
    def keys(found):
        sequences = {tuple(sorted(graphs.degrees(read_rows(item.expected)))) for item in found}
        return sequences, {frozenset(item.meta["requirements"]) for item in found}

    train = keys([*items, *Easy().items("train", 500, 1)])
    test = keys([*test_items, *(easy := list(Easy().items("test", 80, 1)))])
    assert not train[0] & test[0] and not train[1] & test[1]
    assert len(keys(easy)[1]) == len(easy)  # no question twice


def test_a_graph_has_the_same_letters_however_it_was_drawn():
    rng = random.Random(0)
    tree = graphs.from_edges(6, [(0, 1), (1, 2), (1, 3), (3, 4), (4, 5)])
    found = {lettered(graphs.relabelled(tree, rng.sample(range(6), 6)), rng) for _ in range(30)}
    assert len(found) <= 4 and all(graphs.degrees(one) == [3, 2, 2, 1, 1, 1] for one in found)
    assert len({draw_graph(8, random.Random(seed)) for seed in range(40)}) > 35
    assert all(family(7, rng) for family in FAMILIES)


def test_a_retry_asks_the_same_in_other_letters(items):
    """A graph meets as many requirements of the retry as its translation meets of the question."""
    task, rng, changed = Graphs(), random.Random(2), 0
    assert isinstance(task, Checkable)
    for number, item in enumerate(items[:20]):
        other, back = task.again(item, number, 1)
        *lines, last = other.prompt.rstrip("\n").split("\n")
        assert last == "graph:" and len(lines) == len(item.meta["requirements"])
        changed += other.prompt != item.prompt
        for _ in range(5):
            graph = draw_graph(len(read_rows(item.expected)), rng)
            met = sum(holds(line, graph) for line in lines)
            assert task.score(item, back(rows(graph)))["share"] * len(lines) == pytest.approx(met)
        assert back("nothing") == "nothing"
    assert changed > 10


# --- texts ------------------------------------------------------------------------------------------------------------


def test_rows_are_read_as_written_and_nothing_else_is(items):
    assert rows(PATH) == "b 1\nc 0 1\nd 0 0 1\ne 0 0 0 0"
    assert all(rows(read_rows(item.expected)) == item.expected for item in items)
    for text in ("", "b", "b 2", "c 0 1", "b 1\nd 0 1", "b 1\nc 0", "b 1\nc 0 1 1", "b 1 c 0 1", "é\0", rows(PATH) * 3):
        assert read_rows(text) is None
        assert Graphs().score(items[0], text) == {"valid": 0, "share": 0, "parses": 0}
    assert edges_in_draft("b 1\nim port 1\nd 0 def 1\nz 1") == [(0, 1), (2, 3)]


def test_other_formats_have_the_same_edges():
    assert edge_list(BOWTIE) == "a-b a-c b-c c-d c-e d-e"
    assert dot(PATH).splitlines()[5:] == ["  e;", "  a -- b;", "  b -- c;", "  c -- d;", "}"]
    assert json.loads(as_json(PATH)) == {"vertices": [*"abcde"], "edges": [["a", "b"], ["b", "c"], ["c", "d"]]}


def test_a_pair_of_vertices_is_one_token_and_answers_fit_a_canvas():
    tokenizer = Tokenizer.from_directory(directory())
    full = graphs.from_edges(12, itertools.combinations(range(12), 2))
    for graph in (full, graphs.from_edges(12, [])):
        assert len(tokenizer.encode(rows(graph), bos=False)) == 11 + 66 + 10 == CANVAS - 1


# --- training and evaluation ------------------------------------------------------------------------------------------


def test_rows_for_training_do_not_depend_on_the_processes_and_fit_the_recipe(tmp_path):
    for processes in (1, 2):
        data.main(["--out", str(tmp_path / str(processes)), "--count", "200", "--processes", str(processes)])
    first, second = (lzma.decompress((tmp_path / name / "train.jsonl.xz").read_bytes()) for name in "12")
    found = [json.loads(line) for line in first.splitlines()]
    assert first == second and len(found) == 200 and found[0].keys() == {"prompt", "completion"}
    assert recipe.load(RECIPE).objective.canvas_lengths == (CANVAS,) == (Graphs.options["max_new_tokens"],)
    assert tomllib.loads(RECIPE.read_text())["data"]["files"] == ["data/graphs/train.jsonl.xz"]


def test_an_untrained_model_is_scored(tiny, test_items):
    found = evaluate(tiny, Graphs(), test_items[:2], steps=1, max_new_tokens=8, attempts=2)
    assert not found.failures and found.scores["valid"].mean == 0 and found.outcomes[0].attempts == 2


def test_baselines_meet_what_they_are_built_for(capsys, items):
    rng = random.Random(0)
    for item in items[:12]:
        lines = item.meta["requirements"]
        for graph in itertools.islice(baselines.repair(lines, rng), 5):
            assert not [
                line for line in lines if parsed(line)[0] in ("vertices", "edges", "degrees") and not holds(line, graph)
            ]
    baselines.main(["--count", "3", "--training", "30"])
    table = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in table] == ["program", *["random"] * 3, *["degrees"] * 3, *["repair"] * 3, "nearest"]


def test_a_program_stops_at_the_first_valid_graph():
    lines = ["vertices: 5", "triangles: 2"]
    assert baselines.answer(iter([PATH, BOWTIE]), lines, 9) == BOWTIE  # a third graph would be an error
    assert baselines.answer(iter([PATH]), lines, 1) == PATH


# --- pictures ---------------------------------------------------------------------------------------------------------


def test_pictures_have_every_vertex_and_edge(tmp_path):
    picture.main(["--out", str(tmp_path / "question.svg"), "--level", "easy"])
    drawn = ElementTree.fromstring((tmp_path / "question.svg").read_text())
    assert drawn.attrib["role"] == "img"
    strip = picture.settling_picture(
        ["edges: 6", "connected"], ["noise", "b 1\nc 1 0\nd 0 0 1\ne 1 0 1 0", rows(BOWTIE)]
    )
    tags = [element.tag.split("}")[1] for element in ElementTree.fromstring(strip).iter()]
    assert tags.count("circle") == 3 * 5 and tags.count("line") == 0 + 5 + 6
    assert strip.count('class="other"') == 1  # a and e, which the answer does not join
    for note in ("not a graph yet", "1 of 2 met", "2 of 2 met"):
        assert note in strip
    with pytest.raises(InputError, match="not a graph"):
        picture.settling_picture(["connected"], ["noise"])
