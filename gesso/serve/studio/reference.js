// The page at /docs: all endpoints and fields of /openapi.json.

import { getJson } from "./api.js";
import { h } from "./dom.js";
import { curl } from "./snippet.js";
import { setUpTheme } from "./theme.js";

const LIMITS = {
  minimum: "≥",
  exclusiveMinimum: ">",
  maximum: "≤",
  exclusiveMaximum: "<",
  minLength: "characters ≥",
  maxLength: "characters ≤",
  minItems: "items ≥",
  maxItems: "items ≤",
};

/** Return the content of the page for an OpenAPI description. */
export function reference(api) {
  const operations = Object.entries(api.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => ({ path, method, ...operation })),
  );
  const shared = nested(api, operations.map(bodyOf).filter(Boolean));
  return [
    contents(operations),
    h(
      "div",
      { class: "column" },
      h(
        "p",
        { class: "lead" },
        `Version ${api.info.version}. Requests and answers are JSON. If the server needs a key, send it in a header: `,
        h("code", {}, "Authorization: Bearer KEY"),
        ".",
      ),
      operations.map((operation) => endpoint(api, operation)),
      shared.map((name) => objectOf(name, api.components.schemas[name])),
    ),
  ];
}

function contents(operations) {
  const tags = [...new Set(operations.flatMap((operation) => operation.tags))];
  const links = (tag) =>
    operations
      .filter((operation) => operation.tags.includes(tag))
      .map((operation) => h("li", {}, h("a", { href: `#${anchor(operation)}` }, operation.path)));
  return h(
    "nav",
    { class: "contents", "aria-label": "Endpoints" },
    tags.flatMap((tag) => [h("h2", { class: "label" }, tag), h("ul", {}, links(tag))]),
  );
}

function endpoint(api, operation) {
  const body = bodyOf(operation);
  const given = (operation.parameters ?? []).map((one) => field(one.name, one.schema, one.required));
  return h(
    "section",
    { class: "card", id: anchor(operation) },
    h("h2", {}, h("span", { class: "method" }, operation.method.toUpperCase()), " ", h("code", {}, operation.path)),
    operation.description ? h("p", {}, prose(operation.description)) : null,
    given.length ? h("dl", { class: "fields-of" }, given) : null,
    body ? fields(api.components.schemas[body]) : null,
    h("pre", { tabindex: "0", "aria-label": "Example" }, h("code", {}, curl({ path: operation.path, body: api.components.schemas[body]?.examples?.[0] }))),
  );
}

function objectOf(name, schema) {
  return h("section", { class: "card", id: name }, h("h2", {}, h("code", {}, name)), about(schema), fields(schema));
}

function about(schema) {
  return schema.description ? h("p", {}, prose(schema.description)) : null;
}

/** Return the fields of an object, required ones first. */
function fields(schema) {
  const needed = (name) => (schema.required ?? []).includes(name);
  const names = Object.keys(schema.properties).sort((a, b) => needed(b) - needed(a));
  return h(
    "dl",
    { class: "fields-of" },
    names.map((name) => field(name, schema.properties[name], needed(name))),
  );
}

function field(name, schema, required) {
  const plain = ["string", "number", "boolean"].includes(typeof schema.default);
  const fallback = plain && schema.default !== "" ? `${JSON.stringify(schema.default)} by default` : null;
  return h(
    "div",
    {},
    h("dt", {}, h("code", {}, name), " ", h("span", { class: "hint" }, typeOf(schema)), required ? " required" : null),
    h("dd", {}, prose([schema.description, fallback].filter(Boolean).join(" "))),
  );
}

/** Describe a type in words, as nodes. Other objects are links to their descriptions. */
function typeOf(schema) {
  const several = (schema.anyOf ?? schema.oneOf ?? []).filter((one) => one.type !== "null"); // null: not given
  if (several.length) return several.flatMap((one, i) => (i ? [" or ", ...typeOf(one)] : typeOf(one)));
  if (schema.$ref) return [h("a", { href: `#${nameOf(schema)}` }, nameOf(schema))];
  if (schema.enum) return [schema.enum.map((value) => JSON.stringify(value)).join(", ")];
  if (schema.const !== undefined) return [JSON.stringify(schema.const)];
  const limits = Object.keys(LIMITS)
    .filter((name) => schema[name] !== undefined)
    .map((name) => `, ${LIMITS[name]} ${schema[name]}`);
  if (schema.type === "array") return ["list of ", ...typeOf(schema.items ?? {}), ...limits];
  if (typeof schema.additionalProperties === "object") return ["object of ", ...typeOf(schema.additionalProperties)];
  return [schema.type ?? "anything", ...limits];
}

/** Return the names of all objects that these refer to, directly or indirectly. */
function nested(api, names) {
  const found = new Set();
  const look = (schema) => {
    for (const ref of JSON.stringify(schema).matchAll(/"\$ref":"([^"]+)"/g)) {
      const name = nameOf({ $ref: ref[1] });
      if (found.has(name)) continue;
      found.add(name);
      look(api.components.schemas[name]);
    }
  };
  for (const name of names) look(api.components.schemas[name]);
  return [...found].sort();
}

/** Return text whose parts in backquotes are code elements. */
function prose(text) {
  return text.split("`").map((part, i) => (i % 2 ? h("code", {}, part) : part));
}

function bodyOf(operation) {
  const schema = operation.requestBody?.content["application/json"].schema;
  return schema && nameOf(schema);
}

function nameOf(schema) {
  return schema.$ref.split("/").at(-1);
}

function anchor({ method, path }) {
  return `${method}${path.replaceAll(/[^a-z0-9]+/g, "-")}`;
}

async function show(main) {
  try {
    main.replaceChildren(...reference(await getJson("/openapi.json")));
    document.getElementById(location.hash.slice(1))?.scrollIntoView(); // it did not exist when the page was loaded
  } catch (error) {
    main.replaceChildren(h("p", { class: "complaint", role: "alert" }, error.message));
  }
}

setUpTheme(document.getElementById("theme"));
show(document.getElementById("main"));
