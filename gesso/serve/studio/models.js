// The models and adapters of the server, and the one that all views use. The choice is saved in this browser.

import { bus, getJson } from "./api.js";
import { h } from "./dom.js";

const NAME = "gesso.model";
let served = []; // [{id, parent, vision}]; an adapter has its model as its parent
let wanted = localStorage.getItem(NAME);

/** Return the chosen model, or the server's first one if it is not served. Undefined until the models are known. */
export function chosenModel() {
  return chosen()?.id;
}

/** Return whether the chosen model takes images. */
export function seesImages() {
  return chosen()?.vision === true;
}

function chosen() {
  return served.find(({ id }) => id === wanted) ?? served[0];
}

/** Return the models of the server, empty until they are known. */
export function servedModels() {
  return served;
}

/** Fill the picker. This is the first call that needs a key, so the key form appears at once if one is needed. */
export async function loadModels(picker) {
  try {
    served = (await getJson("/v1/models")).data;
  } catch {
    return; // the key form or the banner shows the problem
  }
  const options = served.map(({ id, parent }) => h("option", { value: id }, parent ? `${id} (adapter of ${parent})` : id));
  picker.replaceChildren(...options);
  picker.value = chosenModel();
  picker.hidden = false;
  bus.dispatchEvent(new Event("models"));
}

export function setUpModels(picker) {
  picker.addEventListener("change", () => {
    wanted = picker.value;
    localStorage.setItem(NAME, wanted);
    bus.dispatchEvent(new Event("models"));
  });
  loadModels(picker);
}
