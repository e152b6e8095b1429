// The herd, beside the talk or alone: speed, workers, queues, and who waits how long.
import {button, byId, el, emptyLine, list, say, show} from './dom.mjs';
import {drainWorker} from './herd_acts.mjs';
import {Plot} from './plot.mjs';
import {drawQueues} from './queues.mjs';
import {Refusal, ask} from './server.mjs';
import {isAtLeast} from './views.mjs';
import {count, short, span} from './words.mjs';

const POLL_MS = 1000;
/** More rows than this are a bar, not squares. */
const MOST_SQUARES = 64;

/** Looks at the herd once a second, as long as somebody looks at the page. */
export class Herd {
  #plot = new Plot();
  #timer = null;

  /** onFound(herd) each time; onRefused(refusal) when the gateway does not let us look. */
  constructor(onFound, onRefused) {
    this.onFound = onFound;
    this.onRefused = onRefused;
    document.addEventListener('visibilitychange', () => document.hidden || this.look());
  }

  async look() {
    clearTimeout(this.#timer);
    let goesOn = true;
    try {
      this.#draw(await ask('GET', 'v1/herd', {signal: AbortSignal.timeout(10_000)}));
    } catch (error) {
      goesOn = this.#complain(error);
    }
    clearTimeout(this.#timer);
    if (goesOn && !document.hidden) this.#timer = setTimeout(() => this.look(), POLL_MS);
  }

  #complain(error) {
    const isRefused = error instanceof Refusal;
    say(byId('lost'), isRefused ? `The gateway says: ${error.message}` : 'The gateway does not answer. Trying again …');
    show(byId('lost'), !(isRefused && error.status === 401));
    if (isRefused && error.status < 500) this.onRefused(error);
    return !(isRefused && error.status === 401);
  }

  #draw(herd) {
    show(byId('lost'), false);
    const speed = herd.workers.reduce((sum, worker) => sum + worker.tokens_per_s, 0);
    this.#plot.add(Date.now(), speed);
    const mayAct = isAtLeast(herd.role, 'operator');
    drawWorkers(herd.workers, mayAct);
    drawQueues(herd.queues, mayAct);
    drawJobs(herd.jobs);
    this.onFound(herd);
  }
}

function drawWorkers(workers, mayAct) {
  const sorted = [...workers].sort((a, b) => (a.name < b.name ? -1 : 1));
  list(byId('workers'), sorted, (worker) => worker.name, (worker) => newWorker(worker, mayAct), drawWorker);
  emptyLine(byId('workers'), 'li', workers.length, 'No worker is up.');
}

function newWorker({name}, mayAct) {
  const bar = () => el('span', {className: 'bar'}, el('i'));
  const item = el('li', {className: 'worker'},
    el('p', {className: 'head'}, el('strong'), el('span', {className: 'state'})),
    el('p', {className: 'about'}),
    el('dl', {},
      el('dt', {}, 'Rows'), el('dd', {}, el('span', {className: 'rows'}), el('span', {className: 'value'})),
      el('dt', {}, 'Cache'), el('dd', {}, bar(), el('span', {className: 'value'}))));
  const drain = button('Drain', () => drainWorker(name, item.dataset.state === 'drained'), 'plain drain act');
  if (mayAct) item.append(drain);
  return item;
}

function drawWorker(item, worker) {
  say(item.querySelector('strong'), worker.name);
  const state = worker.state === 'loading' ? `loading ${worker.loaded_percent}%` : worker.state;
  say(item.querySelector('.state'), state);
  const isDrained = ['draining', 'drained'].includes(worker.state);
  item.dataset.state = worker.state === 'ready' ? 'ready' : isDrained ? 'drained' : 'other';
  const drain = item.querySelector('.drain');
  if (drain) say(drain, isDrained ? 'Resume' : 'Drain');
  if (drain) drain.ariaLabel = `${isDrained ? 'Resume' : 'Drain'} ${worker.name}`;
  const hits = worker.prefix_hit_rate ? ` · ${percent(worker.prefix_hit_rate)} prefix hits` : '';
  say(item.querySelector('.about'), `${worker.model} on ${worker.device} · ${count(Math.round(worker.tokens_per_s))} tokens/s${hits}`);
  const [rows, cache] = item.querySelectorAll('dd');
  drawRows(rows.querySelector('.rows'), worker);
  const waiting = worker.waiting ? ` + ${count(worker.waiting)}` : '';
  say(rows.querySelector('.value'), `${count(worker.running)}${waiting} / ${count(worker.slots)}`);
  cache.querySelector('i').style.width = percent(worker.kv_cache_usage);
  say(cache.querySelector('.value'), percent(worker.kv_cache_usage));
  cache.title = `of ${count(worker.kv_cache_tokens)} tokens`;
}

/** A square for each row of the batch, or one bar if there are too many. */
function drawRows(box, {running, slots}) {
  const squares = slots <= MOST_SQUARES ? slots : 1;
  box.className = slots <= MOST_SQUARES ? 'rows' : 'rows bar';
  while (box.children.length < squares) box.append(el('i'));
  while (box.children.length > squares) box.lastChild.remove();
  if (squares === 1 && slots > 1) box.firstChild.style.width = percent(running / slots);
  else [...box.children].forEach((square, place) => square.classList.toggle('on', place < running));
}

const percent = (share) => `${Math.round(100 * Math.min(1, share))}%`;

const cells = (num) => () => el('tr', {}, el('th', {scope: 'row'}), ...Array.from({length: num}, () => el('td')));

function drawJobs(jobs) {
  show(byId('jobs-part'), Boolean(jobs));
  const body = byId('jobs').tBodies[0];
  list(body, jobs ?? [], (job) => job.job_id, newJob, (row, job) => {
    const sinceS = Math.max(0, job.now_ms - job.due_ms) / 1000;
    const place = job.position === null ? '' : ` #${count(job.position)}`;
    const values = [job.model, job.state + place, job.state === 'delayed' ? '–' : span(sinceS), count(job.tokens)];
    values.forEach((value, place) => say(row.children[place + 1], value));
    row.classList.toggle('bad', job.state === 'unserved');
    row.title = job.note || (job.estimated_wait_s === null ? '' : `in about ${span(job.estimated_wait_s)}`);
  });
  emptyLine(body, 'tr', jobs?.length ?? 0, 'None waits, none runs.', 5);
}

function newJob(job) {
  const row = cells(4)();
  row.firstChild.append(el('a', {href: `#job=${encodeURIComponent(job.job_id)}`, title: job.job_id}, short(job.job_id)));
  return row;
}
