// Elements in one line. Text becomes text nodes, never markup: nothing the model writes can become an element.

/**
 * h("button", {class: "primary", onclick: run}, "Run")
 * Properties that begin with "on" are listeners; true and false set or leave out an attribute.
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

/** An id that no other element of the page has. */
export function uniqueId(name) {
  count += 1;
  return `${name}-${count}`;
}

/** A labelled field: the label, and the control it names. */
export function field(label, control, hint) {
  control.id ||= uniqueId("field");
  const note = hint ? h("span", { class: "hint", id: `${control.id}-hint` }, hint) : null;
  if (note) control.setAttribute("aria-describedby", note.id);
  return h("div", { class: "field" }, h("label", { for: control.id }, label), control, note);
}

export function number(value, digits = 1) {
  return Number.isFinite(value) ? value.toFixed(digits) : "–";
}

/** Call `draw` at most once a frame, however often it is asked for. */
export function oncePerFrame(draw) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      draw();
    });
  };
}
