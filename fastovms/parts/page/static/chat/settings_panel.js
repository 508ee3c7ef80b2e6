/** Shows and changes what is set for answers. What is wrong is said beside its field. */

import { make } from "../core/dom.js";
import { put, showNumber } from "../core/language.js";
import { defaultMaxTokens, keepSettings, parseAs, readSettings } from "../session/settings.js";

const EFFORTS = ["", "none", "minimal", "low", "medium", "high"];
const SAMPLE_TOOLS = [{
  type: "function", name: "get_weather", description: "Get the weather of a city.",
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"], additionalProperties: false },
}];

export class SettingsPanel {
  /**
   * @param {function(): void} onChange
   * @param {string} [place] by which the settings are kept.
   */
  constructor(onChange, place = "") {
    this.#onChange = onChange;
    this.#place = place;
    const id = (name) => (place ? `set-${place}-${name}` : `set-${name}`);
    const number = (name, range) => make("input", { id: id(name), type: "number", inputmode: "decimal", ...range });
    this.#fields = {
      instructions: make("textarea", { id: id("instructions"), rows: "4", dir: "auto" }),
      temperature: number("temperature", { min: "0", max: "2", step: "any" }),
      maxTokens: number("maxTokens", { min: "1", step: "1" }),
      seed: number("seed", { step: "1" }),
      topP: number("topP", { min: "0.000001", max: "1", step: "any" }),
      topK: number("topK", { min: "0", step: "1" }),
      minP: number("minP", { min: "0", max: "0.999999", step: "any" }),
      repetitionPenalty: number("repetitionPenalty", { min: "0.01", max: "2", step: "any" }),
      frequencyPenalty: number("frequencyPenalty", { min: "-2", max: "2", step: "any" }),
      presencePenalty: number("presencePenalty", { min: "-2", max: "2", step: "any" }),
      effort: make("select", { id: id("effort") }, ...EFFORTS.map((value) => make("option", { value, text: `effort.${value || "default"}` }))),
      schema: make("textarea", { id: id("schema"), rows: "5", class: "code", spellcheck: "false" }),
      tools: make("textarea", { id: id("tools"), rows: "6", class: "code", spellcheck: "false" }),
      logprobs: make("input", { id: id("logprobs"), type: "checkbox" }),
    };
    this.#faults = { schema: make("p", { class: "fault", id: id("fault-schema"), role: "alert" }), tools: make("p", { class: "fault", id: id("fault-tools"), role: "alert" }) };
    this.#toolsPart = this.#labelled("tools", make("button", { type: "button", class: "link", text: "set.sample-tools", on: { click: () => this.#putSample() } }));
    this.#effortPart = this.#labelled("effort");
    this.node = make("form", { class: "panel-body" },
      this.#labelled("instructions"),
      make("div", { class: "columns" }, this.#labelled("temperature"), this.#labelled("maxTokens"), this.#labelled("seed"), this.#effortPart),
      make("details", { class: "sampling" }, make("summary", { text: "set.sampling" }),
        make("div", { class: "columns" }, ...["topP", "topK", "minP", "repetitionPenalty", "frequencyPenalty", "presencePenalty"].map((name) => this.#labelled(name)))),
      this.#labelled("schema"), this.#toolsPart,
      make("div", { class: "check" }, this.#fields.logprobs, make("label", { for: id("logprobs"), text: "set.logprobs" })));
    this.node.addEventListener("submit", (event) => event.preventDefault());
    this.node.addEventListener("input", () => this.#read());
    this.put(readSettings(place));
  }

  #onChange;
  #place;
  #fields;
  #faults;
  #toolsPart;
  #effortPart;
  /** @type {import("../session/settings.js").Settings} */
  settings;

  /** Whether what is set can be sent. */
  get isValid() {
    // What is wrong must be seen: a field in what is folded has no place to say so.
    const wrong = this.node.querySelector(".sampling :invalid");
    if (wrong) wrong.closest("details").open = true;
    return this.#check() && this.node.checkValidity();
  }

  /**
   * Shows settings, and keeps them.
   *
   * @param {import("../session/settings.js").Settings} settings
   */
  put(settings) {
    this.settings = settings;
    for (const [name, field] of Object.entries(this.#fields)) {
      if (field.type === "checkbox") field.checked = settings[name];
      else field.value = settings[name];
    }
    const most = defaultMaxTokens(settings);
    this.#fields.maxTokens.placeholder = most ? showNumber(most) : "";
    this.#check();
    keepSettings(settings, this.#place);
  }

  /** Shows only what a model is capable of. */
  showFor({ capabilities = [] }) {
    this.#toolsPart.hidden = !capabilities.includes("tools");
    this.#effortPart.hidden = !capabilities.includes("thinking");
  }

  #labelled(name, ...more) {
    const field = this.#fields[name];
    const fault = this.#faults[name] ?? null;
    if (fault) field.setAttribute("aria-describedby", fault.id);
    return make("div", { class: "field" }, make("label", { for: field.id, text: `set.${name}` }), field, fault, ...more);
  }

  #read() {
    const values = Object.entries(this.#fields).map(([name, field]) => [name, field.type === "checkbox" ? field.checked : field.value]);
    this.settings = { ...this.settings, ...Object.fromEntries(values) };
    this.#check();
    keepSettings(this.settings, this.#place);
    this.#onChange();
  }

  #check() {
    const wrong = [["schema", "object"], ["tools", "list"]].filter(([name, kind]) => {
      const text = this.#fields[name].value.trim();
      const isWrong = text !== "" && parseAs(text, kind) === null;
      if (isWrong) put(this.#faults[name], "text", `set.not-${kind}`);
      this.#faults[name].hidden = !isWrong;
      this.#fields[name].setAttribute("aria-invalid", String(isWrong));
      return isWrong;
    });
    return wrong.length === 0;
  }

  #putSample() {
    this.#fields.tools.value = JSON.stringify(SAMPLE_TOOLS, null, 2);
    this.#read();
  }
}
