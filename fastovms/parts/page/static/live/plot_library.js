/** Loads the library that plots, once somebody looks: it is no module, but a script. */

const SCRIPT = new URL("../vendor/uPlot.iife.min.js", import.meta.url).href;
const STYLE = new URL("../vendor/uPlot.min.css", import.meta.url).href;
let loading = null;

/** @returns {Promise<Function>} its constructor. */
export function loadPlots() {
  loading ??= new Promise((resolve, reject) => {
    const style = document.createElement("link");
    style.rel = "stylesheet";
    style.href = STYLE;
    const script = document.createElement("script");
    script.src = trusted(SCRIPT);
    script.onload = () => resolve(globalThis.uPlot);
    script.onerror = () => reject(new Error("the library that plots cannot be loaded"));
    document.head.append(style, script);
  });
  return loading;
}

/** Vouches for the one script that is loaded so (https://www.w3.org/TR/trusted-types/). */
function trusted(url) {
  const policy = globalThis.trustedTypes?.createPolicy("fastovms-plots", {
    createScriptURL(asked) {
      if (asked !== SCRIPT) throw new TypeError(`${asked} is not the library that plots`);
      return asked;
    },
  });
  return policy ? policy.createScriptURL(url) : url;
}
