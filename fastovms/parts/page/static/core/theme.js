/** Chooses between light, dark and what the system has, and keeps the choice on the device. */

import { device } from "./storage.js";

const KEPT_AS = "fastovms.theme";

export const THEMES = ["system", "light", "dark"];

/** @returns {string} one of `THEMES`. */
export function theme() {
  const kept = device.get(KEPT_AS);
  return THEMES.includes(kept) ? kept : "system";
}

/** Shows the page in the theme that is kept. */
export function applyTheme() {
  document.documentElement.dataset.theme = theme();
}

/** @param {string} name one of `THEMES`. */
export function chooseTheme(name) {
  device.set(KEPT_AS, name);
  applyTheme();
  dispatchEvent(new Event("themechosen"));
}
