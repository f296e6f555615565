// What the JavaScript client scripts share; the counterpart of checks.py.
export const MODEL = "gesso-mini";
export const QUESTION = "Who are you?";
export const WEATHER_QUESTION = "What is the weather in Paris?";
export const PERSON = {
  type: "object",
  properties: { name: { type: "string", maxLength: 20 }, age: { type: "integer" } },
  required: ["name", "age"],
  additionalProperties: false,
};
export const WEATHER = {
  type: "object",
  properties: { city: { type: "string", maxLength: 20 } },
  required: ["city"],
  additionalProperties: false,
};
export const client_url = process.argv[2];

export function assert(value) {
  if (!value) throw new Error("the answer is not what was expected");
}

/** Run the checks one after another, and print one JSON line per check. */
export async function run(checks) {
  let failed = false;
  for (const [check, work] of Object.entries(checks)) {
    let error = "";
    try {
      await work();
    } catch (reason) {
      failed = true;
      error = String(reason).slice(0, 500);
      console.error(reason);
    }
    console.log(JSON.stringify({ check, error }));
  }
  process.exit(failed ? 1 : 0);
}
