// The page that `gesso trace` writes: one run to scrub through and inspect.

import { Recording } from "./recording.js";
import "./graph.js";
import "./run-panel.js";

const run = JSON.parse(document.getElementById("run").textContent);
const panel = document.querySelector("run-panel");
panel.replay(Recording.from(run));
