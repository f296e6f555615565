// A request of the page as a command for a shell, and as a program in Python that needs no package.

import { hasKey } from "./api.js";

const AUTHORIZATION = "Bearer YOUR_API_KEY"; // the key itself stays in the tab
const URL_SHOWN = 60; // characters of an image

/** Return a curl command. Single quotes in the body are escaped, because they would end the shell's string. */
export function curl({ path, body }) {
  const parts = [`curl ${location.origin}${path}`];
  if (hasKey()) parts.push(`-H 'Authorization: ${AUTHORIZATION}'`);
  if (body) {
    const text = JSON.stringify(body, null, 2).replaceAll("'", "\\u0027");
    parts.push("-H 'Content-Type: application/json'", `-d '${text}'`);
  }
  return parts.join(" \\\n  ");
}

/** Return a Python program that prints the answer. */
export function python({ path, body }) {
  const headers = { "Content-Type": "application/json", ...(hasKey() ? { Authorization: AUTHORIZATION } : {}) };
  const part = !path.includes("chat") ? '["text"]' : body.tools ? '["message"]' : '["message"]["content"]';
  return `import json
import urllib.request

url = ${JSON.stringify(location.origin + path)}
headers = ${literal(headers)}
body = ${literal(body)}
request = urllib.request.Request(url, json.dumps(body).encode(), headers)
with urllib.request.urlopen(request) as response:
    answer = json.load(response)
print(answer["choices"][0]${part})
`;
}

/** Return a request without the fields that only the canvas needs. They do not change the text. */
export function withoutDrafts({ path, body: { stream_options, diffusion: { drafts, ...diffusion } = {}, ...body } }) {
  return { path, body: Object.keys(diffusion).length ? { ...body, diffusion } : body };
}

/** Return a request with only the beginning of each image, which would fill many pages. */
export function withoutPixels({ path, body }) {
  const shorten = (name, value) =>
    name === "url" && /^data:image\//.test(value) && value.length > URL_SHOWN ? `${value.slice(0, URL_SHOWN)}…` : value;
  return { path, body: JSON.parse(JSON.stringify(body, shorten)) };
}

/** Return a JSON value as a Python literal. Python reads all escapes of JSON strings. */
function literal(value, indent = "") {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const inner = `${indent}    `;
  const rows = Object.entries(value)
    .filter(([, part]) => part !== undefined)
    .map(([name, part]) => [Array.isArray(value) ? "" : `${JSON.stringify(name)}: `, literal(part, inner)].join(""));
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  return rows.length ? `${open}\n${rows.map((row) => `${inner}${row},\n`).join("")}${indent}${close}` : open + close;
}
