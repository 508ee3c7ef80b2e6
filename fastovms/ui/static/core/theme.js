/** Chooses between light, dark and what the system has, and keeps the choice on the device. */

const KEPT_AS = "fastovms.theme";

export const THEMES = ["system", "light", "dark"];

/** @returns {string} one of `THEMES`. */
export function theme() {
  const kept = localStorage.getItem(KEPT_AS);
  return THEMES.includes(kept) ? kept : "system";
}

/** Shows the page in the theme that is kept. */
export function applyTheme() {
  document.documentElement.dataset.theme = theme();
}

/** @param {string} name one of `THEMES`. */
export function chooseTheme(name) {
  localStorage.setItem(KEPT_AS, name);
  applyTheme();
  dispatchEvent(new Event("themechosen"));
}
