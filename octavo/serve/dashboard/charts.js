// Charts as SVG: lines over time with a reader that follows the pointer, bars, lanes of events, and a timeline.

const SVG = "http://www.w3.org/2000/svg";
const LEFT = 46;
const RIGHT = 10;
const TOP = 8;
const BOTTOM = 20;

export function make(name, attributes = {}, text = null) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== null) element.textContent = text;
  return element;
}

/** 1, 2, 2.5 or 5 times a power of ten, the nearest that is not lower. */
export function roundStep(step) {
  const power = 10 ** Math.floor(Math.log10(step));
  return [1, 2, 2.5, 5, 10].map((digit) => digit * power).find((size) => size >= step * (1 - 1e-9));
}

export function number(value, digits = 3) {
  if (value === null || !Number.isFinite(value)) return "–";
  if (Math.abs(value) >= 1000 || Number.isInteger(value)) return Math.round(value).toLocaleString("en");
  return Number(value.toPrecision(digits)).toLocaleString("en", { maximumFractionDigits: 6 });
}

/** Seconds as a value and its unit. */
export function duration(seconds) {
  if (seconds === null) return ["–", ""];
  if (seconds === 0) return ["0", ""];
  if (seconds < 0.9995) return [number(seconds * 1000), "ms"];
  return seconds < 120 ? [number(seconds), "s"] : [number(seconds / 60), "min"];
}

export const formats = {
  seconds: (value) => duration(value).join(" ").trim(),
  plain: (value) => number(value),
  share: (value) => (value === null ? "–" : `${number(value * 100)} %`),
};

class Drawing {
  constructor(figure, label) {
    this.figure = figure;
    this.svg = make("svg", { role: "img", "aria-label": label });
    this.legend = document.createElement("p");
    this.legend.className = "legend";
    this.plot = document.createElement("div");
    this.plot.className = "plot";
    this.plot.append(this.svg);
    figure.append(this.legend, this.plot);
  }

  begin() {
    this.width = this.plot.clientWidth || 300;
    this.height = this.plot.clientHeight || 150;
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.svg.replaceChildren();
  }

  text(x, y, text, anchor = "middle", className = "") {
    this.svg.append(make("text", { x, y, "text-anchor": anchor, class: className }, text));
  }

  empty(text) {
    this.text((LEFT + this.width - RIGHT) / 2, this.height / 2, text, "middle", "empty");
  }
}

/** Lines or stacked areas over time. Series: {name, kind: "line" | "area", style: 0.., points: [[t, v | null]]}. */
export class TimeChart extends Drawing {
  constructor(figure, label, { format, top = null, least = 0, nothing = "nothing yet" }) {
    super(figure, label);
    Object.assign(this, { format, top, least, nothing });
    this.reader = document.createElement("p");
    this.reader.className = "reader";
    this.reader.hidden = true;
    this.plot.append(this.reader);
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerdown", (event) => this.point(event));
    this.plot.addEventListener("pointerleave", () => this.point(null));
  }

  draw(series, end, span) {
    this.begin();
    Object.assign(this, { series, end, span });
    const highest = Math.max(this.least, ...series.flatMap((one) => one.points.map(([, value]) => value ?? 0)));
    const step = this.top ? this.top / 4 : roundStep((highest || 1) / 4);
    this.high = this.top ?? Math.max(step, Math.ceil(highest / step - 1e-9) * step);
    for (let value = 0; value <= this.high + step / 2; value += step) {
      const y = this.y(value);
      this.svg.append(make("path", { class: "grid", d: `M${LEFT} ${y}H${this.width - RIGHT}` }));
      this.text(LEFT - 6, y + 4, this.format(value), "end");
    }
    this.time();
    for (const one of series) this.line(one);
    if (!series.some((one) => one.points.some(([, value]) => value !== null))) this.empty(this.nothing);
    this.tell(null);
    this.point(this.pointed);
  }

  x(at) {
    return LEFT + (1 - (this.end - at) / this.span) * (this.width - LEFT - RIGHT);
  }

  y(value) {
    return this.height - BOTTOM - (Math.min(value, this.high) / this.high) * (this.height - TOP - BOTTOM);
  }

  time() {
    const parts = this.width < 260 ? 2 : 4;
    for (let part = 0; part <= parts; part += 1) {
      const ago = (this.span * (parts - part)) / parts;
      const text = ago === 0 ? "now" : ago < 120 ? `−${number(ago)} s` : `−${number(ago / 60)} min`;
      this.text(this.x(this.end - ago), this.height - 5, text, part === 0 ? "start" : part === parts ? "end" : "middle");
    }
  }

  line({ kind, style, points }) {
    let path = "";
    let area = "";
    let begun = null;
    let before = null;
    const close = () => {
      if (begun === null) return;
      area += `L${before[0]} ${this.y(0)}L${begun} ${this.y(0)}Z`;
      begun = null;
    };
    for (const [at, value] of points) {
      if (value === null) {
        close();
        continue;
      }
      const place = [this.x(at).toFixed(1), this.y(value).toFixed(1)];
      const word = `${begun === null ? "M" : "L"}${place[0]} ${place[1]}`;
      path += word;
      area += word;
      begun ??= place[0];
      before = place;
    }
    close();
    if (kind === "area") this.svg.append(make("path", { class: `area s${style}`, d: area }));
    this.svg.append(make("path", { class: `line s${style}`, d: path }));
    if (points.length === 1 && before) this.svg.append(make("circle", { class: `dot s${style}`, cx: before[0], cy: before[1], r: 3 }));
  }

  /** The legend, with the values at a time, or the last ones. */
  tell(at) {
    this.legend.replaceChildren(
      ...this.series.map((one) => {
        const entry = document.createElement("span");
        const point = at === null ? one.points[one.points.length - 1] : nearest(one.points, at);
        const value = document.createElement("b");
        value.textContent = this.format(one.told ? one.told(point) : point ? point[1] : null);
        const key = document.createElement("i");
        key.className = `s${one.style}`;
        entry.append(key, `${one.name} `, value);
        return entry;
      }),
    );
  }

  point(event) {
    this.svg.querySelector(".cross")?.remove();
    this.pointed = event;
    this.reader.hidden = !event;
    if (!event) return this.series && this.tell(null);
    const box = this.plot.getBoundingClientRect();
    const x = Math.min(this.width - RIGHT, Math.max(LEFT, ((event.clientX - box.left) / box.width) * this.width));
    const at = this.end - (1 - (x - LEFT) / (this.width - LEFT - RIGHT)) * this.span;
    this.svg.append(make("path", { class: "cross", d: `M${x} ${TOP}V${this.height - BOTTOM}` }));
    this.reader.textContent = new Date(at * 1000).toLocaleTimeString();
    this.tell(at);
  }
}

function nearest(points, at) {
  let best = null;
  for (const point of points) if (best === null || Math.abs(point[0] - at) < Math.abs(best[0] - at)) best = point;
  return best && Math.abs(best[0] - at) < 5 ? best : null;
}

/** Shares of steps by number of sequences. */
export class Bars extends Drawing {
  draw(counts) {
    this.begin();
    const total = counts.reduce((sum, [, count]) => sum + count, 0);
    const last = counts.reduce((found, [, count], place) => (count ? place : found), -1);
    if (last < 0) {
      this.legend.replaceChildren();
      return this.empty("no steps");
    }
    const shown = counts.slice(0, Math.max(last + 1, 4));
    const most = Math.max(...shown.map(([, count]) => count)) / total;
    const wide = (this.width - 2 * RIGHT) / shown.length;
    const high = this.height - BOTTOM - TOP - 14;
    let before = 0;
    shown.forEach(([bound, count], place) => {
      const share = count / total;
      const size = (share / most) * high;
      const x = RIGHT + place * wide;
      const top = this.height - BOTTOM - size;
      this.svg.append(make("rect", { class: "bar s0", x: x + wide * 0.12, y: top, width: wide * 0.76, height: Math.max(size, count ? 1.5 : 0), rx: 2 }));
      if (count && wide > 26) this.text(x + wide / 2, top - 4, share < 0.005 ? "<1 %" : `${Math.round(share * 100)} %`);
      const low = before + 1;
      this.text(x + wide / 2, this.height - 5, bound === null ? `>${number(before)}` : low >= bound || wide < 44 ? number(bound) : `${number(low)}–${number(bound)}`);
      before = bound;
    });
    this.svg.append(make("path", { class: "grid", d: `M${RIGHT} ${this.height - BOTTOM}H${this.width - RIGHT}` }));
    const mark = document.createElement("span");
    mark.textContent = `${number(total)} steps, share by size`;
    this.legend.replaceChildren(mark);
  }
}

/** One lane for each kind of event; a mark where some happened, larger for more. Lanes: {name, style, points, total}. */
export class Lanes extends Drawing {
  draw(lanes, end, span) {
    this.begin();
    const left = 118;
    const right = 62;
    const high = (this.height - BOTTOM - TOP) / lanes.length;
    lanes.forEach(({ name, style, points, total }, lane) => {
      const y = TOP + (lane + 0.5) * high;
      this.text(0, y + 4, name, "start", total ? "strong" : "");
      this.text(this.width, y + 4, number(total), "end", total ? `strong s${style}` : "");
      this.svg.append(make("path", { class: "grid", d: `M${left} ${y}H${this.width - right}` }));
      for (const [at, count] of points) {
        const x = left + (1 - (end - at) / span) * (this.width - left - right);
        const size = Math.min(high * 0.42, 3 + 1.5 * Math.log2(1 + count));
        this.svg.append(make("path", { class: `mark s${style}`, d: `M${x} ${y - size}L${x + size} ${y}L${x} ${y + size}L${x - size} ${y}Z` }));
      }
    });
    this.text(left, this.height - 5, `−${number(span / 60)} min`, "start");
    this.text(this.width - right, this.height - 5, "now", "end");
    this.text(this.width, this.height - 5, "shown", "end");
  }
}

/** Stages of the start one after the other, and their names below. */
export class Timeline extends Drawing {
  draw(stages) {
    this.plot.hidden = true;
    const total = stages.reduce((sum, [, seconds]) => sum + seconds, 0);
    const bar = document.createElement("div");
    bar.className = "timeline";
    bar.setAttribute("role", "img");
    bar.setAttribute("aria-label", stages.map(([name, seconds]) => `${name} ${seconds.toFixed(2)} s`).join(", "));
    const names = stages.map(([name, seconds], place) => {
      const part = document.createElement("div");
      part.className = `s${place % 5}`;
      part.style.flexGrow = Math.max(seconds, total / 400);
      part.title = `${name}: ${seconds.toFixed(2)} s`;
      bar.append(part);
      const entry = document.createElement("span");
      const key = document.createElement("i");
      key.className = `s${place % 5} full`;
      const value = document.createElement("b");
      value.textContent = `${seconds.toFixed(2)} s`;
      entry.append(key, `${name} `, value);
      return entry;
    });
    const all = document.createElement("span");
    all.className = "strong";
    all.textContent = `ready after ${total.toFixed(2)} s`;
    this.legend.replaceChildren(all, ...names);
    this.figure.querySelector(".timeline")?.remove();
    this.figure.insertBefore(bar, this.legend);
  }
}
