// The tools below a canvas: copy the request, save the run, open a saved one.

import { requestButtons } from "./copy.js";
import { h } from "./dom.js";
import { download, fileButton } from "./files.js";
import { Recording } from "./recording.js";

// `gesso trace` writes the run into its page, with every "<" of the data escaped.
const IN_A_PAGE = /<script type="application\/json" id="run">([^<]*)<\/script>/;

/** Return the tools of a panel. They copy the request of the run that is shown, or the one that `next` returns. `next`
 * throws an Error if there is none yet. */
export function runTools(panel, next) {
  const complaint = h("p", { class: "complaint", role: "alert" });
  const trying = (action) => {
    complaint.textContent = "";
    try {
      return action();
    } catch (error) {
      complaint.textContent = error.message;
      return null;
    }
  };
  const save = () => {
    if (!panel.recording?.length) throw new Error("There is no run yet. Run one, then save it.");
    download("gesso-run.json", panel.recording);
  };
  const open = async (file) => {
    const text = await file.text();
    trying(() => panel.replay(recordingIn(text, file.name)));
  };
  return h(
    "div",
    { class: "run-tools" },
    requestButtons(() => trying(() => panel.recording?.request ?? next())),
    h("button", { type: "button", class: "quiet", onclick: () => trying(save) }, "Save run"),
    fileButton("Open run", ".json,.html", open),
    complaint,
  );
}

/** Return the recording in the text of a file: a saved run, or a page of `gesso trace`. */
function recordingIn(text, name) {
  try {
    const recording = Recording.from(JSON.parse(IN_A_PAGE.exec(text)?.[1] ?? text));
    recording.note = `A recorded run: ${name}`;
    if (recording.length) return recording;
  } catch {
    // the error below says what is expected
  }
  throw new Error(`${name} has no run. Open a file of “Save run”, or a page of gesso trace.`);
}
