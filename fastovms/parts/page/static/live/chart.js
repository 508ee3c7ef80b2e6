/** Draws lines over time, in the colours of the page. */

import { language, put, showNumber } from "../core/language.js";
import { make } from "../core/dom.js";
import { loadPlots } from "./plot_library.js";

/** How many seconds are shown: from the first one on, so that the labels of times never repeat. */
export const WINDOW = 120;

const HEIGHT = 170;

/**
 * A line of a chart.
 *
 * @typedef {Object} Line
 * @property {string} text key of its name.
 * @property {string} colour name of a custom property of the page's styles.
 * @property {function(import("./engine_rates.js").Rates): number|null} read
 */

export class Chart {
  /**
   * @param {string} title key of the table of texts.
   * @param {Line[]} lines
   * @param {{isStacked?: boolean, top?: number}} [form] whether each line stands on the one before, and
   *   what the scale reaches at least.
   */
  constructor(title, lines, { isStacked = false, top = 1 } = {}) {
    this.#lines = lines;
    this.#isStacked = isStacked;
    this.#top = top;
    this.#place = make("div", { class: "plot", "aria-hidden": "true" });
    const legend = make("div", { class: "legend" }, ...lines.map(({ text, colour }) => {
      const mark = make("i", { class: "mark" });
      mark.style.background = `var(${colour})`;
      return make("span", {}, mark, make("span", { text }));
    }));
    this.node = make("figure", { class: "chart" }, make("figcaption", {}, make("h3", { text: title }), legend), this.#place);
    put(this.node, "aria-label", title);
  }

  #lines;
  #isStacked;
  #top;
  #place;
  #plot = null;
  #data = null;

  /** Makes the plot anew: when it is first shown, resized, or the page's colours have changed. */
  async draw() {
    const width = this.#place.clientWidth;
    if (!width) return;
    const Plot = await loadPlots();
    this.#plot?.destroy();
    this.#plot = new Plot(this.#options(width), this.#data ?? [[], ...this.#lines.map(() => [])], this.#place);
  }

  /**
   * Shows what was measured.
   *
   * @param {number[]} times seconds since 1970.
   * @param {(import("./engine_rates.js").Rates|null)[]} rates null = the server was not reached.
   */
  show(times, rates) {
    const columns = this.#lines.map(({ read }) => rates.map((one) => (one ? read(one) : null)));
    if (this.#isStacked) {
      for (let index = 1; index < columns.length; index++) {
        columns[index] = columns[index].map((value, at) => (value === null ? null : value + (columns[index - 1][at] ?? 0)));
      }
    }
    this.#data = [times, ...columns];
    this.#plot?.setData(this.#data);
  }

  /** Returns a colour of the page's styles as a canvas takes it. */
  #computed(colour) {
    this.#place.style.color = colour;
    return getComputedStyle(this.#place).color;
  }

  #soft({ colour }) {
    return this.#computed(`color-mix(in srgb, var(${colour}) 20%, transparent)`);
  }

  #options(width) {
    const colour = (name) => this.#computed(`var(${name})`);
    const { fontFamily } = getComputedStyle(this.#place);
    const axis = { stroke: colour("--faint"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: `11px ${fontFamily}` };
    const top = this.#top;
    return {
      width, height: HEIGHT, legend: { show: false }, cursor: { show: false }, padding: [8, 8, 0, 0],
      scales: { x: { range: (_, first, last) => [last - WINDOW, last] }, y: { range: (_, low, high) => [0, Math.max(top, (high ?? 0) * 1.1)] } },
      axes: [
        { ...axis, size: 26, values: (_, seconds) => seconds.map((second) => new Date(second * 1000).toLocaleTimeString(language(), { minute: "2-digit", second: "2-digit" })) },
        { ...axis, size: 48, values: (_, numbers) => numbers.map((number) => showNumber(number, number < 10 ? 1 : 0)) },
      ],
      series: [{}, ...this.#lines.map((line, index) => ({ stroke: colour(line.colour), width: 2, points: { show: false }, fill: this.#isStacked && index === 0 ? this.#soft(line) : undefined }))],
      // Between each line and the one that it stands on.
      bands: this.#isStacked ? this.#lines.slice(1).map((line, index) => ({ series: [index + 2, index + 1], fill: this.#soft(line) })) : [],
    };
  }
}
