// Tokens a second over the last two minutes.
import {byId, say} from './dom.mjs';
import {count, span} from './words.mjs';

const SPAN_MS = 120_000;
const WIDTH = 120;
const HEIGHT = 40;
/** Points that are further apart are not joined: the page slept. */
const GAP_MS = 5000;

export class Plot {
  #points = []; // [ms, value]
  #svg = byId('plot');

  constructor() {
    this.#svg.addEventListener('pointermove', (event) => this.#point(event));
    this.#svg.addEventListener('pointerleave', () => this.#point(null));
  }

  add(ms, value) {
    this.#points = this.#points.filter(([at]) => ms - at <= SPAN_MS + GAP_MS);
    this.#points.push([ms, value]);
    this.#draw(ms);
  }

  #draw(nowMs) {
    const values = this.#points.map(([, value]) => value);
    const most = Math.max(...values);
    const top = roundUp(most);
    const x = (ms) => (WIDTH * (1 - (nowMs - ms) / SPAN_MS)).toFixed(2);
    const y = (value) => (HEIGHT - (HEIGHT - 2) * (value / top)).toFixed(2);
    let line = '';
    let area = '';
    for (const run of runs(this.#points)) {
      // The last point twice: one alone is a dot.
      const path = [...run, run.at(-1)].map(([ms, value]) => `${x(ms)},${y(value)}`).join('L');
      line += `M${path}`;
      area += `M${x(run[0][0])},${HEIGHT}L${path}L${x(run.at(-1)[0])},${HEIGHT}Z`;
    }
    this.#svg.querySelector('.line').setAttribute('d', line);
    this.#svg.querySelector('.area').setAttribute('d', area);
    say(byId('plot-top'), count(top));
    say(byId('speed-now'), count(Math.round(values.at(-1))));
    const about = `Tokens a second: ${Math.round(values.at(-1))} now, ${Math.round(most)} at most within two minutes`;
    this.#svg.setAttribute('aria-label', about);
  }

  /** Show the value under the pointer. */
  #point(event) {
    const cursor = this.#svg.querySelector('.cursor');
    const box = this.#svg.getBoundingClientRect();
    const nowMs = this.#points.at(-1)?.[0];
    if (!event || !nowMs) {
      cursor.removeAttribute('d');
      say(byId('plot-at'), '');
      return;
    }
    const share = (event.clientX - box.left) / box.width;
    const atMs = nowMs - SPAN_MS * (1 - share);
    const near = this.#points.reduce((a, b) => (Math.abs(b[0] - atMs) < Math.abs(a[0] - atMs) ? b : a));
    cursor.setAttribute('d', `M${WIDTH * (1 - (nowMs - near[0]) / SPAN_MS)},0V${HEIGHT}`);
    say(byId('plot-at'), `${count(Math.round(near[1]))}, ${span((nowMs - near[0]) / 1000)} ago`);
  }
}

/** Points in runs without gaps. */
function runs(points) {
  const found = [];
  for (const point of points) {
    const last = found.at(-1)?.at(-1);
    if (last && point[0] - last[0] <= GAP_MS) found.at(-1).push(point);
    else found.push([point]);
  }
  return found;
}

/** The next of 10, 20, 30, 40, 60, 80, 100, 200, ... */
export function roundUp(value) {
  let step = 10;
  while (10 * step < value) step *= 10;
  return step * [1, 2, 3, 4, 6, 8, 10].find((times) => times * step >= value);
}
