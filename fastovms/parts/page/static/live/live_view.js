/** Shows how the engine fares, once a second for as long as somebody looks. */

import { elapsed, make } from "../core/dom.js";
import { showNumber } from "../core/language.js";
import { encodes } from "../core/models.js";
import { askText } from "../core/server.js";
import { Chart, WINDOW } from "./chart.js";
import { SCRAPED, ratesBetween } from "./engine_rates.js";
import { parseExposition } from "./exposition.js";
import { WorkList } from "./work_list.js";

const INTERVAL = 1000;
/** Seconds over which the numbers are taken: shares and percentiles of one second jump. */
const SMOOTHED = 5;

const milliseconds = (seconds) => (seconds === null ? null : 1000 * seconds);
const megabytes = (bytes) => bytes / 1e6;
const percent = (share) => (share === null ? null : 100 * share);

/** What is shown only where a model is looked at that generates, or one that encodes texts. */
const [OF_GENERATION, OF_ENCODING] = ["generation", "encoding"];

/** The numbers: key of the name, what is read, its unit and digits, and of which models only. */
const NUMBERS = [
  ["live.out", (rates) => rates.out, "", 1, OF_GENERATION],
  ["live.in", (rates) => rates.in, "", 1],
  ["live.running", (rates) => rates.running, "", 0],
  ["live.waiting", (rates) => rates.waiting, "", 0],
  ["live.kv", (rates) => percent(rates.kv), " %", 1, OF_GENERATION],
  ["live.hits", (rates) => percent(rates.hits), " %", 0, OF_GENERATION],
  ["live.accepted", (rates) => percent(rates.accepted), " %", 0, OF_GENERATION],
  ["live.first", (rates) => milliseconds(rates.first), " ms", 0, OF_GENERATION],
  ["live.gap", (rates) => milliseconds(rates.gap), " ms", 1, OF_GENERATION],
  ["live.texts", (rates) => rates.texts, "", 1, OF_ENCODING],
  ["live.batch", (rates) => rates.batch, "", 1, OF_ENCODING],
  ["live.padding", (rates) => percent(rates.padding), " %", 1, OF_ENCODING],
  ["live.errors", (rates) => rates.clientErrors + rates.serverErrors, "", 0],
  ["live.weights", (rates) => megabytes(rates.weights), " MB", 0],
  ["live.packed", (rates) => megabytes(rates.packed), " MB", 0, OF_GENERATION],
  ["live.kv-memory", (rates) => megabytes(rates.kvMemory), " MB", 0, OF_GENERATION],
  ["live.children", (rates) => megabytes(rates.children), " MB", 0],
  ["live.rest", (rates) => megabytes(rates.rest), " MB", 0],
];

const line = (text, colour, read) => ({ text, colour, read });

/** Returns the charts, each with of which models it is only. */
function makeCharts() {
  return [
    [new Chart("live.tokens", [line("live.out", "--blue", (r) => r.out), line("live.in", "--orange", (r) => r.in)], { top: 10 })],
    [new Chart("live.requests", [line("live.running", "--blue", (r) => r.running), line("live.waiting", "--orange", (r) => r.waiting)], { top: 4 })],
    [new Chart("live.shares", [line("live.kv", "--blue", (r) => percent(r.kv)), line("live.hits", "--green", (r) => percent(r.hits)),
      line("live.accepted", "--orange", (r) => percent(r.accepted))], { top: 100 }), OF_GENERATION],
    [new Chart("live.budget", [line("live.answers", "--blue", (r) => r.stepAnswers), line("live.rejected", "--red", (r) => r.stepRejected),
      line("live.prompts", "--orange", (r) => r.stepPrompts)], { isStacked: true, top: 4 }), OF_GENERATION],
    [new Chart("live.latency-first", [line("live.first", "--blue", (r) => milliseconds(r.first)), line("live.first-p95", "--orange", (r) => milliseconds(r.firstSlow))], { top: 10 }), OF_GENERATION],
    [new Chart("live.latency-gap", [line("live.gap", "--blue", (r) => milliseconds(r.gap)), line("live.gap-p95", "--orange", (r) => milliseconds(r.gapSlow))], { top: 10 }), OF_GENERATION],
    [new Chart("live.encoding", [line("live.texts", "--blue", (r) => r.texts), line("live.batch", "--orange", (r) => r.batch)], { top: 4 }), OF_ENCODING],
    [new Chart("live.failures", [line("live.client-errors", "--orange", (r) => r.clientErrors), line("live.server-errors", "--red", (r) => r.serverErrors)], { top: 4 })],
  ];
}

export class LiveView {
  /** @param {Object[]} models as the server lists them. */
  constructor(models) {
    this.#models = models;
    this.#charts = makeCharts();
    this.#model = make("select", { label: "live.model" }, make("option", { value: "", text: "live.all" }), ...models.map(({ id }) => make("option", { value: id }, id)));
    this.#model.addEventListener("change", () => this.#choose());
    this.#values = NUMBERS.map(() => make("dd", {}, "–"));
    this.#cards = NUMBERS.map(([text], index) => make("div", {}, make("dt", { text }), this.#values[index]));
    this.#fault = make("p", { class: "card failure", role: "alert", hidden: true, text: "unreachable" });
    this.node = make("section", { class: "live", label: "live.title" },
      make("header", { class: "row" }, make("div", {}, make("h1", { text: "live.title" }), make("p", { class: "faint", text: "live.window" })), this.#model),
      this.#fault,
      make("h2", { class: "off-screen", text: "live.now" }),
      make("dl", { class: "numbers" }, ...this.#cards),
      this.#work.node,
      make("h2", { class: "off-screen", text: "live.charts" }),
      make("div", { class: "charts" }, ...this.#charts.map(([chart]) => chart.node)));
    this.#showKinds();
    new ResizeObserver(() => this.#draw()).observe(this.node);
    addEventListener("themechosen", () => this.#draw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#draw());
    document.addEventListener("visibilitychange", () => (document.hidden ? this.#pause() : this.#isOn && this.#resume()));
  }

  #models;
  #charts;
  #model;
  #values;
  #cards;
  #fault;
  #work = new WorkList();
  #isOn = false;
  #pausing = null;
  /** Scrapes with their times in seconds, and what has happened before each; null = the server was not reached. */
  #scrapes = [];

  start() {
    this.#isOn = true;
    if (!document.hidden) this.#resume();
  }

  stop() {
    this.#isOn = false;
    this.#pause();
  }

  /** Scrapes until it is paused. */
  async #resume() {
    if (this.#pausing) return;
    const { signal } = this.#pausing = new AbortController();
    while (!signal.aborted) {
      const asked = performance.now();
      await Promise.all([this.#scrape(), this.#work.look()]);
      const pause = INTERVAL - (performance.now() - asked);
      await elapsed(pause);
    }
  }

  #pause() {
    this.#pausing?.abort();
    this.#pausing = null;
  }

  async #scrape() {
    let samples = null;
    try {
      samples = parseExposition(await askText(SCRAPED, { Accept: "text/plain" }));
    } catch { /* it is told below */ }
    const at = Date.now() / 1000;
    this.#scrapes = this.#scrapes.filter((one) => one.at > at - WINDOW);
    this.#scrapes.push({ at, samples, rates: null });
    this.#compare(this.#scrapes.length - 1);
    this.#fault.hidden = samples !== null;
    this.#show();
  }

  /** Compares a scrape with one of some seconds before. */
  #compare(index) {
    const now = this.#scrapes[index];
    const before = this.#scrapes.slice(Math.max(0, index - SMOOTHED), index).find(({ samples }) => samples);
    now.rates = before && now.samples ? ratesBetween(before.samples, now.samples, now.at - before.at, this.#model.value) : null;
  }

  /** Shows the model that is chosen, or all. */
  #choose() {
    this.#showKinds();
    this.#scrapes.forEach((_, index) => this.#compare(index));
    this.#show();
    this.#draw();
  }

  /** Hides what is not of the models that are looked at. */
  #showKinds() {
    const { value } = this.#model;
    const kinds = new Set(this.#models.filter(({ id }) => !value || id === value).map((model) => (encodes(model) ? OF_ENCODING : OF_GENERATION)));
    const isHidden = (kind) => kind !== undefined && !kinds.has(kind);
    NUMBERS.forEach(([, , , , kind], index) => { this.#cards[index].hidden = isHidden(kind); });
    for (const [chart, kind] of this.#charts) chart.node.hidden = isHidden(kind);
  }

  #draw() {
    for (const [chart] of this.#charts) chart.draw();
  }

  #show() {
    const times = this.#scrapes.map(({ at }) => at);
    const rates = this.#scrapes.map((scrape) => scrape.rates);
    for (const [chart] of this.#charts) chart.show(times, rates);
    const last = rates.at(-1);
    NUMBERS.forEach(([, read, unit, digits], index) => {
      const value = last ? read(last) : null;
      this.#values[index].textContent = value === null ? "–" : `${showNumber(value, digits)}${unit}`;
    });
  }
}
