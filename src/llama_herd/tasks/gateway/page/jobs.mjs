// Jobs in a state: searched, opened, and ended or run again, many at once.
import {button, el, emptyLine, field, list, say, show, table} from './dom.mjs';
import {clearQueue} from './herd_acts.mjs';
import {Picks} from './picks.mjs';
import {ask} from './server.mjs';
import {jobPlace} from './views.mjs';
import {at, count, many, short, span} from './words.mjs';

const ACTIVE = {running: 'Running', queued: 'Waiting', unserved: 'Without a worker', delayed: 'Delayed'};
const ENDED = {failed: 'Failed', ended: 'Ended', done: 'Done', cancelled: 'Cancelled'};
const SINCE = {'': 'Any time', '900s': '15 minutes', '3600s': 'An hour', '86400s': 'A day'};
const PAGE = 50;
/** Jobs that run or wait have no further pages. */
const MOST_ACTIVE = 500;
const COLUMNS = ['', 'Job', 'State', 'Model', 'Notes', 'When', 'Took', 'Tokens', 'Worker', 'Why'];

export class Jobs {
  #numLooks = 0;
  /** What was asked for last, whatever has been written into the form since. */
  #asked = new URLSearchParams();
  #found = [];
  #hasMore = false;
  #herd = null;
  #models = el('datalist', {id: 'models'});
  #trouble = el('p', {className: 'trouble', role: 'alert', hidden: true});
  #more = button('Show more', () => this.#look(true));
  #picks = new Picks(() => this.#look());

  constructor(box) {
    const [scroll, body] = table('Jobs', ...COLUMNS);
    this.body = body;
    this.form = el('form', {className: 'search', role: 'search', ariaLabel: 'Jobs'},
      field('Id, or note=value', el('input', {name: 'q', type: 'search', autocomplete: 'off', spellcheck: false})),
      field('State', choice('state', {...ENDED, ...ACTIVE})),
      field('Model', el('input', {name: 'model', placeholder: 'any', autocomplete: 'off'})),
      field('Ended within', choice('since', SINCE)),
      el('button', {type: 'submit'}, 'Search'), this.#models);
    this.form.elements.model.setAttribute('list', 'models');
    this.form.addEventListener('submit', (event) => this.#search(event));
    this.form.addEventListener('change', () => this.#setSince());
    this.cancel = this.#picks.action('Cancel', {
      question: (num) => `Cancel ${many(num, 'job')}? What they have written is kept.`,
      said: (num) => `${many(num, 'job')} cancelled`,
      act: (id) => ask('DELETE', `v1/jobs/${encodeURIComponent(id)}`),
    });
    this.retry = this.#picks.action('Run again', {
      question: (num) => `Run ${many(num, 'job')} again? Each becomes a new job, which names the old one.`,
      said: (num) => `${many(num, 'job')} will run again`,
      act: (id) => ask('POST', `v1/jobs/${encodeURIComponent(id)}/retry`),
    });
    this.clear = button('', () => this.#clear());
    for (const one of [this.cancel, this.retry, this.clear, this.#more]) show(one, false);
    box.append(el('h2', {}, 'Jobs'), this.form, this.#trouble, this.#picks.bar, this.clear, scroll, this.#more);
  }

  /** Show the jobs that the address asks for. */
  async open({query}) {
    for (const name of ['q', 'state', 'model', 'since']) {
      this.form.elements[name].value = query.get(name) ?? (name === 'state' ? 'failed' : '');
    }
    this.#setSince();
    this.#picks.say('');
    await this.#look();
  }

  /** The herd as it is now: its models can be chosen. */
  know(herd) {
    this.#herd = herd;
    list(this.#models, herd.queues, (queue) => queue.model, ({model}) => el('option', {value: model}), () => {});
  }

  get #state() { return this.form.elements.state.value; }

  get #model() { return this.form.elements.model.value.trim(); }

  /** Only jobs that have ended have a time of their end. */
  #setSince() {
    const {since} = this.form.elements;
    since.disabled = this.#state in ACTIVE;
    if (since.disabled) since.value = '';
  }

  #search(event) {
    event.preventDefault();
    const q = this.form.elements.q.value.trim();
    const asked = {state: this.#state, model: this.#model, since: this.form.elements.since.value, q};
    const given = Object.entries(asked).filter(([, value]) => value);
    const place = q && !q.includes('=') ? jobPlace(q) : `#jobs?${new URLSearchParams(given)}`;
    if (location.hash === place) this.#look();
    else location.hash = place;
  }

  /** What the form asks for now. */
  #query() {
    const asked = new URLSearchParams({state: this.#state, limit: PAGE});
    if (this.#model) asked.set('model', this.#model);
    if (this.form.elements.since.value) asked.set('since_s', parseInt(this.form.elements.since.value, 10));
    if (this.form.elements.q.value.includes('=')) asked.set('metadata', this.form.elements.q.value.trim());
    return asked;
  }

  /** goesOn: whether to show more of the same. */
  async #look(goesOn = false) {
    if (!goesOn) this.#asked = this.#query();
    const asked = new URLSearchParams(this.#asked);
    const isActive = asked.get('state') in ACTIVE;
    if (isActive && goesOn) asked.set('limit', Math.min(MOST_ACTIVE, this.#found.length + PAGE));
    if (!isActive && goesOn) asked.set('after', this.#found.at(-1).job_id);
    const look = ++this.#numLooks;
    let [page, trouble] = [{data: [], has_more: false}, ''];
    try {
      page = await ask('GET', `v1/jobs?${asked}`);
    } catch (error) {
      trouble = error.message;
    }
    if (look !== this.#numLooks) return; // a later one knows better
    say(this.#trouble, trouble);
    if (!trouble || !goesOn) { // else what is shown stays
      this.#found = goesOn && !isActive ? [...this.#found, ...page.data] : page.data;
      this.#hasMore = page.has_more && !(isActive && page.data.length >= MOST_ACTIVE);
    }
    this.#draw(isActive);
  }

  #draw(isActive) {
    show(this.#trouble, this.#trouble.textContent !== '');
    list(this.body, this.#found, (job) => job.job_id, (job) => this.#made(job), draw);
    emptyLine(this.body, 'tr', this.#found.length, 'No such job.', COLUMNS.length);
    this.#picks.keep(this.#found.map((job) => job.job_id));
    show(this.cancel, isActive);
    show(this.retry, !isActive);
    show(this.#more, this.#hasMore);
    const model = this.#asked.get('model');
    show(this.clear, isActive && Boolean(model));
    say(this.clear, `End all jobs of ${model}`);
  }

  #made({job_id: id}) {
    const name = el('a', {href: jobPlace(id), title: id}, short(id));
    return el('tr', {}, el('td', {}, this.#picks.box(id)), el('th', {scope: 'row'}, name),
      ...COLUMNS.slice(2).map(() => el('td')));
  }

  async #clear() {
    const model = this.#asked.get('model');
    const queue = this.#herd?.queues.find((one) => one.model === model);
    const num = queue ? queue.waiting + queue.running : 0;
    await clearQueue(model, num, (text) => this.#picks.say(text));
    await this.#look();
  }
}

function draw(row, job) {
  const tookS = job.ended_ms === null ? null : (job.ended_ms - job.due_ms) / 1000;
  const notes = Object.entries(job.metadata).map(([name, value]) => `${name}=${value}`).join(' ');
  const values = [
    job.state, job.model, notes, at(job.ended_ms ?? job.due_ms), job.ended_ms === null ? '–' : span(Math.max(0, tookS)),
    count(job.tokens), job.worker ?? '–', job.error ? `${job.error.code}: ${job.error.message}` : job.finish_reason ?? job.note,
  ];
  values.forEach((value, place) => say(row.children[place + 2], value));
  for (const place of [4, 9]) row.children[place].title = row.children[place].textContent;
  row.classList.toggle('bad', job.state === 'failed' || job.state === 'unserved');
}

function choice(name, words) {
  const options = Object.entries(words).map(([value, text]) => el('option', {value}, text));
  return el('select', {name}, ...options);
}
