// Create elements. Text becomes text nodes, never markup, so that no text of the model can become an element.

/**
 * h("button", {class: "primary", onclick: run}, "Run")
 * Properties that begin with "on" are listeners. True sets an empty attribute; false leaves it out.
 */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== undefined && value !== null) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

let count = 0;

/** Return an id that is unique in the page. */
export function uniqueId(name) {
  count += 1;
  return `${name}-${count}`;
}

/** Return a label with its control and an optional hint. */
export function field(label, control, hint) {
  control.id ||= uniqueId("field");
  const note = hint ? h("span", { class: "hint", id: `${control.id}-hint` }, hint) : null;
  if (note) control.setAttribute("aria-describedby", note.id);
  return h("div", { class: "field" }, h("label", { for: control.id }, label), control, note);
}

export function number(value, digits = 1) {
  return Number.isFinite(value) ? value.toFixed(digits) : "–";
}

/** Return a function that calls `draw` at most once per frame. */
export function oncePerFrame(draw) {
  let scheduled = false;
  return () => {
    if (scheduled) return;
    scheduled = true;
    requestAnimationFrame(() => {
      scheduled = false;
      draw();
    });
  };
}
