/** Turns two scrapes into what happened between them: rates, shares, percentiles. */

const PREFIX = "fastovms_";

/** The series that rates are made of, without the prefix: no others are asked for, since each costs the server time. */
const SERIES = [
  "generation_tokens_total", "prompt_tokens_total", "prefix_cache_hits_total", "prefix_cache_queries_total",
  "spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total", "step_seconds_count",
  "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc",
  "encoder_texts_total", "encoder_padding_tokens_total", "encoder_batch_size_count",
  "time_to_first_token_seconds_bucket", "inter_token_latency_seconds_bucket", "http_requests_total",
  "weights_bytes", "packed_weights_bytes", "kv_cache_bytes", "child_process_resident_memory_bytes",
];
const RESIDENT = "process_resident_memory_bytes";

/** The parts of the server's memory that are counted by model. */
const OF_MODELS = ["weights_bytes", "packed_weights_bytes", "kv_cache_bytes"];

/** Where the server tells of them, below its root. */
export const SCRAPED = `metrics?${[...SERIES.map((name) => PREFIX + name), RESIDENT].map((name) => `name[]=${name}`).join("&")}`;

/**
 * What happened between two scrapes; null where nothing did that it could be told of.
 *
 * @typedef {Object} Rates
 * @property {number} out tokens generated a second.
 * @property {number} in prompt tokens a second.
 * @property {number} running
 * @property {number} waiting
 * @property {number|null} kv share of the KV cache in use, from 0 to 1; null = there is none.
 * @property {number|null} hits share of prompt tokens that were cached.
 * @property {number|null} accepted share of drafted tokens that were right.
 * @property {number|null} first median seconds to the first token.
 * @property {number|null} firstSlow 95th percentile of it.
 * @property {number|null} gap median seconds between tokens.
 * @property {number|null} gapSlow 95th percentile of it.
 * @property {number|null} stepPrompts prompt tokens of a step, on average.
 * @property {number|null} stepAnswers tokens of answers of a step.
 * @property {number|null} stepRejected drafted tokens of a step that were computed in vain.
 * @property {number} texts texts encoded a second.
 * @property {number|null} batch texts computed together, on average.
 * @property {number|null} padding share of the tokens computed for them that only fills batches up.
 * @property {number} weights bytes of memory, as of the three below.
 * @property {number} packed
 * @property {number} kvMemory
 * @property {number} children of the processes that the server has started, for all models.
 * @property {number} rest of the server without its weights and KV caches, for all models.
 * @property {number} clientErrors a minute.
 * @property {number} serverErrors a minute.
 */

/**
 * @param {Map<string, import("./exposition.js").Sample[]>} before
 * @param {Map<string, import("./exposition.js").Sample[]>} now
 * @param {number} seconds between the two.
 * @param {string} model "" = all together.
 * @returns {Rates}
 */
export function ratesBetween(before, now, seconds, model) {
  // Models that encode texts have no KV cache.
  const cached = new Set((now.get(`${PREFIX}kv_cache_usage_perc`) ?? []).map(({ labels }) => labels.model_name));
  const isMeant = (name) => !model || name === model;
  const generates = (name) => isMeant(name) && cached.has(name);
  const level = (name) => total(now, name, isMeant);
  const growth = (name, which = isMeant) => Math.max(0, total(now, name, which) - total(before, name, which));
  const out = growth("generation_tokens_total");
  // Those that the prefix cache has found are prompt tokens that no step computes.
  const found = growth("prefix_cache_hits_total");
  const prompts = growth("prompt_tokens_total");
  const drafted = growth("spec_decode_num_draft_tokens_total");
  const right = growth("spec_decode_num_accepted_tokens_total");
  const steps = growth("step_seconds_count", generates);
  const ofPrompts = growth("prompt_tokens_total", generates);
  const texts = growth("encoder_texts_total");
  const padding = growth("encoder_padding_tokens_total");
  const percentile = (name, share) => percentileBetween(before, now, name, model, share);
  return {
    out: out / seconds,
    in: prompts / seconds,
    running: level("num_requests_running"),
    waiting: level("num_requests_waiting"),
    kv: ratio(level("kv_cache_usage_perc"), model ? Number(cached.has(model)) : cached.size),
    hits: ratio(found, growth("prefix_cache_queries_total")),
    accepted: ratio(right, drafted),
    first: percentile("time_to_first_token_seconds", 0.5),
    firstSlow: percentile("time_to_first_token_seconds", 0.95),
    gap: percentile("inter_token_latency_seconds", 0.5),
    gapSlow: percentile("inter_token_latency_seconds", 0.95),
    stepPrompts: ratio(Math.max(0, ofPrompts - found), steps),
    stepAnswers: ratio(out, steps),
    stepRejected: ratio(drafted - right, steps),
    texts: texts / seconds,
    batch: ratio(texts, growth("encoder_batch_size_count")),
    padding: ratio(padding, padding + prompts - ofPrompts),
    weights: level("weights_bytes"),
    packed: level("packed_weights_bytes"),
    kvMemory: level("kv_cache_bytes"),
    children: total(now, "child_process_resident_memory_bytes", () => true),
    rest: Math.max(0, (now.get(RESIDENT)?.[0].value ?? 0) - OF_MODELS.reduce((sum, name) => sum + total(now, name, () => true), 0)),
    clientErrors: 60 * errorGrowth(before, now, "4") / seconds,
    serverErrors: 60 * errorGrowth(before, now, "5") / seconds,
  };
}

function ratio(part, whole) {
  return whole > 0 ? part / whole : null;
}

/** Adds up a series of those models whose names are wanted. */
function total(samples, name, isWanted) {
  let sum = 0;
  for (const { labels, value } of samples.get(PREFIX + name) ?? []) {
    if (isWanted(labels.model_name)) sum += value;
  }
  return sum;
}

function errorGrowth(before, now, digit) {
  const count = (samples) => (samples.get(`${PREFIX}http_requests_total`) ?? [])
    .filter(({ labels }) => labels.status.startsWith(digit) && labels.status !== "499")
    .reduce((sum, { value }) => sum + value, 0);
  return Math.max(0, count(now) - count(before));
}

/** Returns a percentile of what a histogram has counted in between, interpolated in its bucket. */
function percentileBetween(before, now, name, model, share) {
  const older = bucketsOf(before, name, model);
  const counts = [...bucketsOf(now, name, model)].map(([bound, count]) => [bound, count - (older.get(bound) ?? 0)]);
  counts.sort(([one], [other]) => one - other);
  const all = counts.at(-1)?.[1] ?? 0;
  if (all <= 0) return null;
  let [low, below] = [0, 0];
  for (const [bound, count] of counts) {
    if (count >= share * all) return bound === Infinity ? low : low + (bound - low) * ((share * all - below) / (count - below));
    [low, below] = [bound, count];
  }
  return low;
}

function bucketsOf(samples, name, model) {
  const buckets = new Map();
  for (const { labels, value } of samples.get(`${PREFIX}${name}_bucket`) ?? []) {
    if (model && labels.model_name !== model) continue;
    const bound = labels.le === "+Inf" ? Infinity : Number(labels.le);
    buckets.set(bound, (buckets.get(bound) ?? 0) + value);
  }
  return buckets;
}
