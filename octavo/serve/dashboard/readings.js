// The readings that the server has sent, and what they say: rates, percentiles, shares. No drawing.

const KEPT = 900;

/** What is known of the server. `at` gives a value by name; times are seconds since 1970. */
export class Readings {
  constructor() {
    this.samples = []; // [number, at_s, values, ttft, itl, batch]
    this.about = null; // model, names, bounds, startup
    this.state = "connecting";
    this.reason = "";
    this.advice = []; // what holds the engine back
  }

  /** Ask for what is new. `url` has no credentials in it; the browser adds those that it was given. */
  async fetch(url) {
    const last = this.samples.length ? this.samples[this.samples.length - 1][0] : 0;
    const response = await fetch(`${url}?since=${last}`, { credentials: "same-origin", cache: "no-store" });
    if (!response.ok) throw new Error(`status ${response.status}`);
    this.take(await response.json(), last);
  }

  take(told, last) {
    const restarted = told.samples.length && told.samples[told.samples.length - 1][0] < last;
    if (told.names) {
      this.about = told;
      this.places = Object.fromEntries(told.names.map((name, place) => [name, place]));
      this.samples = [];
    }
    this.state = told.state;
    this.reason = told.reason;
    this.advice = told.advice;
    if (restarted || (last && !told.samples.length && this.age() > 10)) {
      this.samples = []; // another server, or one that had stopped reading: ask for everything
      return;
    }
    this.samples.push(...told.samples);
    this.samples.splice(0, Math.max(0, this.samples.length - KEPT));
  }

  get end() {
    return this.samples.length ? this.samples[this.samples.length - 1][1] : 0;
  }

  /** Seconds since the last reading came. */
  age() {
    return this.heard ? (performance.now() - this.heard) / 1000 : 0;
  }

  at(sample, name) {
    return sample[2][this.places[name]];
  }

  last(name) {
    return this.samples.length ? this.at(this.samples[this.samples.length - 1], name) : null;
  }

  /** [time, value] of a gauge, in the last `span` seconds. */
  gauge(name, span) {
    const place = this.places[name];
    return this.shown(span).map((sample) => [sample[1], sample[2][place]]);
  }

  shown(span) {
    const from = this.end - span;
    return this.samples.filter((sample) => sample[1] >= from);
  }

  /** [time, growth a second], each over the `window` seconds before it. */
  rate(name, span, window) {
    return this.pairs(span, window).map(([then, now]) => [now[1], (this.at(now, name) - this.at(then, name)) / (now[1] - then[1])]);
  }

  /** [time, growth of `part` over growth of `whole`], null where nothing grew. */
  share(part, whole, span, window) {
    return this.pairs(span, window).map(([then, now]) => {
      const all = this.at(now, whole) - this.at(then, whole);
      return [now[1], all > 0 ? (this.at(now, part) - this.at(then, part)) / all : null];
    });
  }

  /** Each reading shown, with the one that is `window` seconds older, or the oldest. */
  pairs(span, window) {
    const found = [];
    let old = 0;
    const from = this.end - span;
    for (const now of this.samples) {
      while (this.samples[old][1] < now[1] - window - 0.2) old += 1;
      if (now[1] >= from && this.samples[old] !== now) found.push([this.samples[old], now]);
    }
    return found;
  }

  /** Growth of a counter between neighbouring readings, where there was some: [time, growth]. */
  events(name, span) {
    return this.pairs(span, 1).map(([then, now]) => [now[1], this.at(now, name) - this.at(then, name)]).filter(([, grown]) => grown > 0);
  }

  /** Growth of a counter over all that is shown. */
  grown(name, span) {
    const shown = this.shown(span);
    return shown.length > 1 ? this.at(shown[shown.length - 1], name) - this.at(shown[0], name) : 0;
  }

  /** [time, percentile] for each share, over the `window` seconds before each reading; null where nothing was counted. */
  percentiles(kind, shares, span, window) {
    const column = { ttft: 3, itl: 4 }[kind];
    const bounds = this.about.bounds[kind];
    const counts = new Array(bounds.length + 1).fill(0);
    const lines = shares.map(() => []);
    const from = this.end - span;
    let old = 0;
    let total = 0;
    const add = (sample, sign) => {
      for (const place in sample[column]) {
        counts[place] += sign * sample[column][place];
        total += sign * sample[column][place];
      }
    };
    for (const now of this.samples) {
      add(now, 1);
      while (this.samples[old][1] <= now[1] - window) add(this.samples[old++], -1);
      if (now[1] < from) continue;
      shares.forEach((share, line) => lines[line].push([now[1], total ? percentile(counts, bounds, total, share) : null]));
    }
    return lines;
  }

  /** Steps by number of sequences in the last `span` seconds: [upper bound or null, count]. */
  batches(span) {
    const bounds = this.about.bounds.batch;
    const counts = new Array(bounds.length + 1).fill(0);
    for (const sample of this.shown(span)) for (const place in sample[5]) counts[place] += sample[5][place];
    return counts.map((count, place) => [place < bounds.length ? bounds[place] : null, count]);
  }
}

/** Linear inside the bucket that the rank falls in. */
export function percentile(counts, bounds, total, share) {
  const rank = share * total;
  let below = 0;
  for (let place = 0; place < counts.length; place += 1) {
    if (counts[place] && below + counts[place] >= rank) {
      if (place === bounds.length) return bounds[bounds.length - 1];
      const low = place ? bounds[place - 1] : 0;
      return low + ((bounds[place] - low) * (rank - below)) / counts[place];
    }
    below += counts[place];
  }
  return null;
}
