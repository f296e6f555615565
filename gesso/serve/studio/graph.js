// <graph-view>: a drawing of the graph that a run writes, at any of its steps. It is hidden for any other text.
//
// Three notations are known: edges such as "a-b" or "a -- b", which is DOT; pairs under "edges" in JSON; and rows of the
// adjacency matrix below its diagonal, such as "c 0 1". Except in rows, a vertex without an edge is not drawn. The page
// only draws: it does not check the graph.

import { h } from "./dom.js";
import { isSettled } from "./recording.js";

const SIDE = 240;
const VERTEX = 11; // radius
const MOST = { tokens: 1024, vertices: 40 };
const FEWEST_EDGES = 3; // fewer may be something else
const VERTEX_NAME = String.raw`[A-Za-z]\d{0,2}|\d{1,2}`;
const EDGE = new RegExp(String.raw`(?<![\w-])(${VERTEX_NAME})\s?--?\s?(${VERTEX_NAME})(?![\w-])`, "g");
const JSON_PAIR = new RegExp(String.raw`\[\s*"?(${VERTEX_NAME})"?\s*,\s*"?(${VERTEX_NAME})"?\s*\]`, "g");
const MATRIX_ROW = /^([a-z])((?: \S+)+)$/gm;

export class GraphView extends HTMLElement {
  #recording = null;
  #read = 0; // steps of the recording that were looked at
  #places = null; // [x, y] by vertex, or null if the text is not a graph

  set recording(recording) {
    this.#recording = recording;
    this.#read = 0;
    this.#places = null;
    this.hidden = true;
    this.grown();
  }

  /** Look for a graph in the newest step. Once there is one, the drawing stays. */
  grown() {
    const count = this.#recording?.length ?? 0;
    if (count === this.#read) return;
    this.#read = count;
    const graph = graphAt(this.#recording, count - 1);
    if (!graph?.whole) return;
    this.#places = placed(graph, this.#places);
    this.hidden = false;
  }

  /** Draw the graph of a step. */
  set index(index) {
    if (!this.#places) return;
    const { edges } = graphAt(this.#recording, index) ?? { edges: [] };
    const shown = edges.filter(({ ends }) => ends.every((name) => this.#places.has(name)));
    const lines = shown.map(({ ends: [from, to], settled }) => {
      const [[x1, y1], [x2, y2]] = [this.#places.get(from), this.#places.get(to)];
      return svgElement("line", { x1, y1, x2, y2, class: settled ? "settled" : "open" });
    });
    const vertices = [...this.#places].flatMap(([name, [x, y]]) => [
      svgElement("circle", { cx: x, cy: y, r: VERTEX }),
      svgElement("text", { x, y }, name),
    ]);
    const label = `Graph with ${this.#places.size} vertices and ${shown.length} edges`;
    const box = { viewBox: `0 0 ${SIDE} ${SIDE}`, role: "img", "aria-label": label };
    this.replaceChildren(svgElement("svg", box, ...lines, ...vertices), h("p", { class: "hint" }, `${label}.`));
  }
}

function svgElement(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// --- reading ---------------------------------------------------------------------------------------------------------

/** Return the graph of a step as `graphIn` does, with `settled` in each edge. */
function graphAt(recording, index) {
  const steps = recording.textAt(index);
  if (steps.reduce((sum, { tokens }) => sum + tokens.length, 0) > MOST.tokens) return null;
  let text = "";
  const settled = []; // one per character
  for (const step of steps) {
    step.tokens.forEach((token, i) => {
      if (recording.special.has(token)) return;
      const piece = recording.piece(token);
      text += piece;
      for (let n = 0; n < piece.length; n += 1) settled.push(step.reason !== null || isSettled(step.states[i]));
    });
  }
  const graph = graphIn(text);
  for (const edge of graph.edges) edge.settled = edge.at.every((at) => settled[at]);
  return graph;
}

/** Return what can be read in a text: {vertices: [name], edges: [{ends, at}], whole}. `at` has the characters that an
 * edge depends on. `whole`: whether most of the text is a graph, so that it is worth drawing. */
export function graphIn(text) {
  const readers = [matrixRows, (given) => matched(EDGE, given)];
  // A list of pairs may be anything, such as coordinates. With that key it is a graph, whatever else is in the object.
  if (/"(edges|links)"/.test(text)) readers.push((given) => ({ ...matched(JSON_PAIR, given), characters: given.length }));
  const [best] = readers.map((read) => read(text)).sort((a, b) => b.characters - a.characters);
  const edges = [...new Map(best.edges.map((edge) => [edge.ends.toSorted().join(), edge])).values()];
  const vertices = [...new Set([...(best.vertices ?? []), ...edges.flatMap(({ ends }) => ends)])];
  vertices.sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  const most = 2 * best.characters >= text.replaceAll(/\s/g, "").length;
  return { vertices, edges, whole: most && edges.length >= FEWEST_EDGES && vertices.length <= MOST.vertices };
}

function matched(pattern, text) {
  const found = [...text.matchAll(pattern)].filter(([, from, to]) => from !== to);
  const edges = found.map(({ 0: whole, 1: from, 2: to, index }) => ({
    ends: [from, to],
    at: [index + whole.indexOf(from), index + whole.lastIndexOf(to)],
  }));
  return { edges, characters: found.reduce((sum, [whole]) => sum + whole.replaceAll(/\s/g, "").length, 0) };
}

/** Read the lines that are rows: row b has one digit, row c two, and so on. A draft may have other tokens among them. */
function matrixRows(text) {
  const nameOf = (number) => String.fromCharCode(97 + number);
  const edges = [];
  let characters = 0;
  let last = -1;
  for (const { 1: name, 2: rest, index } of text.matchAll(MATRIX_ROW)) {
    const words = [...rest.matchAll(/\S+/g)];
    const digits = words.filter(([word]) => word === "0" || word === "1");
    const number = name.charCodeAt(0) - 97;
    if (words.length !== number || 2 * digits.length < number) continue;
    characters += 1 + digits.length;
    last = Math.max(last, number);
    for (const [i, word] of words.entries())
      if (word[0] === "1") edges.push({ ends: [nameOf(i), name], at: [index + 1 + word.index] });
  }
  return { edges, characters, vertices: Array.from({ length: last + 1 }, (_, number) => nameOf(number)) };
}

// --- layout ----------------------------------------------------------------------------------------------------------

/** Return the place of every vertex: at distances like the lengths of the shortest paths, by stress majorization
 * (Gansner, Koren and North 2004). Vertices move from where they were, at first from a circle. */
function placed({ vertices, edges }, before) {
  const apart = pathLengths(vertices, edges);
  const turn = (i) => (2 * Math.PI * i) / vertices.length;
  const start = vertices.map((name, i) => before?.get(name) ?? [Math.sin(turn(i)), -Math.cos(turn(i))]);
  const places = fitted(start, 1);
  for (let round = 0; round < 60; round += 1) {
    places.forEach((here, i) => {
      let [x, y, sum] = [0, 0, 0];
      places.forEach((there, j) => {
        if (i === j) return;
        const weight = apart[i][j] ** -2;
        const [dx, dy] = [here[0] - there[0], here[1] - there[1]];
        const scale = (0.5 * apart[i][j]) / Math.max(1e-3, Math.hypot(dx, dy));
        x += weight * (there[0] + scale * dx);
        y += weight * (there[1] + scale * dy);
        sum += weight;
      });
      if (sum) [here[0], here[1]] = [x / sum, y / sum];
    });
  }
  const drawn = fitted(places, SIDE / 2 - VERTEX - 4);
  return new Map(vertices.map((name, i) => [name, drawn[i].map((value) => Math.round(10 * value + 5 * SIDE) / 10)]));
}

/** Return the places around 0, within `reach` of it in both directions. */
function fitted(places, reach) {
  const ranges = [0, 1].map((axis) => {
    const values = places.map((place) => place[axis]);
    return [Math.min(...values), Math.max(...values)];
  });
  const scale = (2 * reach) / Math.max(1e-6, ...ranges.map(([low, high]) => high - low));
  return places.map((place) => place.map((value, axis) => scale * (value - (ranges[axis][0] + ranges[axis][1]) / 2)));
}

/** Return the lengths of the shortest paths between all vertices (Floyd and Warshall). Parts are kept a little apart. */
function pathLengths(vertices, edges) {
  const numbers = new Map(vertices.map((name, i) => [name, i]));
  const apart = vertices.map((_, i) => vertices.map((__, j) => (i === j ? 0 : Infinity)));
  for (const { ends } of edges) {
    const [i, j] = ends.map((name) => numbers.get(name));
    apart[i][j] = apart[j][i] = 1;
  }
  vertices.forEach((_, k) => {
    for (const row of apart) row.forEach((length, j) => (row[j] = Math.min(length, row[k] + apart[k][j])));
  });
  const separate = Math.sqrt(vertices.length) + 1;
  return apart.map((row) => row.map((length) => Math.min(length, separate)));
}

customElements.define("graph-view", GraphView);
