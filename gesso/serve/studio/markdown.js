// A subset of Markdown as nodes: headings, lists, quotes, code, emphasis, links. HTML is never parsed.
//
// It is called again with the whole text as it grows. Unclosed markup is shown as plain text.

import { h } from "./dom.js";

const INLINE = /(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)|\*\*([^*\n]+)\*\*|\*([^*\s][^*\n]*)\*|\[([^\]\n]+)\]\(([^()\s]+)\)/g;
const ITEM = /^\s*(?:[-*+]|\d+[.)])\s+(.*)$/;

export function markdown(text) {
  const lines = text.split("\n");
  const nodes = [];
  while (lines.length) nodes.push(...block(lines));
  const fragment = document.createDocumentFragment();
  fragment.append(...nodes);
  return fragment;
}

/** Remove the lines of the next block from the front and return its nodes. */
function block(lines) {
  const line = lines[0];
  const fence = /^\s*(```+|~~~+)\s*([\w+-]*)/.exec(line);
  if (fence) return [code(lines, fence)];
  const heading = /^(#{1,6})\s+(.*)$/.exec(line);
  if (heading) {
    lines.shift();
    const level = Math.min(6, heading[1].length + 2); // below the page's own headings
    return [h(`h${level}`, {}, inline(heading[2]))];
  }
  if (ITEM.test(line)) {
    const tag = /^\s*\d/.test(line) ? "ol" : "ul";
    return [
      h(
        tag,
        {},
        take(lines, (next) => ITEM.test(next)).map((item) => h("li", {}, inline(ITEM.exec(item)[1]))),
      ),
    ];
  }
  if (/^\s*>/.test(line)) {
    const quoted = take(lines, (next) => /^\s*>/.test(next)).map((next) => next.replace(/^\s*> ?/, ""));
    return [h("blockquote", {}, inline(quoted.join("\n")))];
  }
  if (!line.trim()) {
    lines.shift();
    return [];
  }
  const plain = take(lines, (next) => next.trim() && !/^\s*(```|~~~|>|#{1,6}\s)/.test(next) && !ITEM.test(next));
  return [h("p", {}, inline(plain.length ? plain.join("\n") : lines.shift()))];
}

function code(lines, [, fence, language]) {
  lines.shift();
  const body = take(lines, (next) => !next.trim().startsWith(fence));
  lines.shift();
  return h("pre", { "data-language": language || false, tabindex: "0" }, h("code", {}, body.join("\n")));
}

function take(lines, wanted) {
  const taken = [];
  while (lines.length && wanted(lines[0])) taken.push(lines.shift());
  return taken;
}

function inline(text) {
  const nodes = [];
  let end = 0;
  for (const found of text.matchAll(INLINE)) {
    nodes.push(text.slice(end, found.index), span(found));
    end = found.index + found[0].length;
  }
  nodes.push(text.slice(end));
  return nodes.filter((node) => node !== "");
}

function span([whole, , code, strong, emphasis, label, address]) {
  if (code !== undefined) return h("code", {}, code);
  if (strong !== undefined) return h("strong", {}, strong);
  if (emphasis !== undefined) return h("em", {}, emphasis);
  // Only addresses that a browser opens as pages: no javascript:, no data:.
  return /^https?:\/\//i.test(address)
    ? h("a", { href: address, rel: "noopener noreferrer", target: "_blank" }, label)
    : whole;
}
