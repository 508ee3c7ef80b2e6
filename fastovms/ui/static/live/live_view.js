/** Shows how the engine fares, once a second for as long as somebody looks. */

import { make } from "../core/dom.js";
import { showNumber } from "../core/language.js";
import { askText } from "../core/server.js";
import { Chart } from "./chart.js";
import { SCRAPED, ratesBetween } from "./engine_rates.js";
import { parseExposition } from "./exposition.js";

const INTERVAL = 1000;
/** How many seconds are shown. */
const WINDOW = 120;
/** Seconds over which the numbers are taken: shares and percentiles of one second jump. */
const SMOOTHED = 5;

const milliseconds = (seconds) => (seconds === null ? null : 1000 * seconds);
const percent = (share) => (share === null ? null : 100 * share);

/** The numbers: key of the name, what is read, its unit and digits. */
const NUMBERS = [
  ["live.out", (rates) => rates.out, "", 1],
  ["live.in", (rates) => rates.in, "", 1],
  ["live.running", (rates) => rates.running, "", 0],
  ["live.waiting", (rates) => rates.waiting, "", 0],
  ["live.kv", (rates) => percent(rates.kv), " %", 1],
  ["live.hits", (rates) => percent(rates.hits), " %", 0],
  ["live.accepted", (rates) => percent(rates.accepted), " %", 0],
  ["live.first", (rates) => milliseconds(rates.first), " ms", 0],
  ["live.gap", (rates) => milliseconds(rates.gap), " ms", 1],
  ["live.errors", (rates) => rates.clientErrors + rates.serverErrors, "", 0],
];

const line = (text, colour, read) => ({ text, colour, read });

function makeCharts() {
  return [
    new Chart("live.tokens", [line("live.out", "--blue", (r) => r.out), line("live.in", "--orange", (r) => r.in)], { top: 10 }),
    new Chart("live.requests", [line("live.running", "--blue", (r) => r.running), line("live.waiting", "--orange", (r) => r.waiting)], { top: 4 }),
    new Chart("live.shares", [line("live.kv", "--blue", (r) => percent(r.kv)), line("live.hits", "--green", (r) => percent(r.hits)),
      line("live.accepted", "--orange", (r) => percent(r.accepted))], { top: 100 }),
    new Chart("live.budget", [line("live.answers", "--blue", (r) => r.stepAnswers), line("live.rejected", "--red", (r) => r.stepRejected),
      line("live.prompts", "--orange", (r) => r.stepPrompts)], { isStacked: true, top: 4 }),
    new Chart("live.latency-first", [line("live.first", "--blue", (r) => milliseconds(r.first)), line("live.first-p95", "--orange", (r) => milliseconds(r.firstSlow))], { top: 10 }),
    new Chart("live.latency-gap", [line("live.gap", "--blue", (r) => milliseconds(r.gap)), line("live.gap-p95", "--orange", (r) => milliseconds(r.gapSlow))], { top: 10 }),
    new Chart("live.failures", [line("live.client-errors", "--orange", (r) => r.clientErrors), line("live.server-errors", "--red", (r) => r.serverErrors)], { top: 4 }),
  ];
}

export class LiveView {
  /** @param {string[]} models their names. */
  constructor(models) {
    this.#charts = makeCharts();
    this.#model = make("select", { label: "live.model" }, make("option", { value: "", text: "live.all" }), ...models.map((name) => make("option", { value: name }, name)));
    this.#model.addEventListener("change", () => this.#compareAll());
    this.#values = NUMBERS.map(() => make("dd", {}, "–"));
    this.#fault = make("p", { class: "card failure", role: "alert", hidden: true, text: "unreachable" });
    this.node = make("section", { class: "live", label: "live.title" },
      make("header", { class: "row" }, make("div", {}, make("h1", { text: "live.title" }), make("p", { class: "faint", text: "live.window" })), this.#model),
      this.#fault,
      make("h2", { class: "off-screen", text: "live.now" }),
      make("dl", { class: "numbers" }, ...NUMBERS.map(([text], index) => make("div", {}, make("dt", { text }), this.#values[index]))),
      make("h2", { class: "off-screen", text: "live.charts" }),
      make("div", { class: "charts" }, ...this.#charts.map((chart) => chart.node)));
    new ResizeObserver(() => this.#charts.forEach((chart) => chart.draw())).observe(this.node);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#charts.forEach((chart) => chart.draw()));
    document.addEventListener("visibilitychange", () => (document.hidden ? this.#pause() : this.#isOn && this.#resume()));
  }

  #charts;
  #model;
  #values;
  #fault;
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
      await this.#scrape();
      const pause = INTERVAL - (performance.now() - asked);
      await new Promise((resolve) => { setTimeout(resolve, pause); });
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

  #compareAll() {
    this.#scrapes.forEach((_, index) => this.#compare(index));
    this.#show();
  }

  #show() {
    const times = this.#scrapes.map(({ at }) => at);
    const rates = this.#scrapes.map((scrape) => scrape.rates);
    for (const chart of this.#charts) chart.show(times, rates);
    const last = rates.at(-1);
    NUMBERS.forEach(([, read, unit, digits], index) => {
      const value = last ? read(last) : null;
      this.#values[index].textContent = value === null ? "–" : `${showNumber(value, digits)}${unit}`;
    });
  }
}
