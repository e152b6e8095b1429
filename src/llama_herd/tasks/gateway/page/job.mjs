// All about one job: what it asks, what became of it, and what it says.
import {button, el, facts, say, show} from './dom.mjs';
import {isSure} from './question.mjs';
import {ask} from './server.mjs';
import {isAtLeast, jobPlace} from './views.mjs';
import {at, count, many, span} from './words.mjs';

const POLL_MS = 2000;
/** Fields of a job that are texts of their own. */
const ASKED = ['prompt', 'prompt_ids', 'messages'];
const WHAT = {
  queued: 'Accepted', due: 'Due', claimed: 'Claimed', started: 'Started', continued: 'Went on', retried: 'To be tried again',
  ended: 'Ended',
};

export class Job {
  #id = '';
  #timer = null;
  #shown = '';
  #state = el('p', {className: 'state', role: 'status'});
  #trouble = el('p', {className: 'trouble', role: 'alert', hidden: true});
  #name = el('code');
  #about = el('div');
  #talk = el('a', {}, 'Its answer as it comes');

  constructor(box, roleNow) {
    this.roleNow = roleNow;
    this.cancel = button('Cancel', () => this.#end());
    this.retry = button('Run again', () => this.#runAgain());
    for (const one of [this.#talk, this.cancel, this.retry]) show(one, false);
    box.append(el('h2', {}, 'Job ', this.#name), this.#state, this.#trouble,
      el('p', {className: 'row'}, this.#talk, this.cancel, this.retry), this.#about);
  }

  async open({id}) {
    this.close();
    [this.#id, this.#shown] = [id, ''];
    say(this.#name, id);
    say(this.#state, '');
    this.#talk.href = `#job=${encodeURIComponent(id)}`;
    this.#about.replaceChildren();
    await this.#look();
  }

  close() {
    clearTimeout(this.#timer);
    this.#id = '';
  }

  get #path() { return `v1/jobs/${encodeURIComponent(this.#id)}`; }

  /** Look at the job, again and again until it has ended. */
  async #look() {
    clearTimeout(this.#timer);
    const id = this.#id;
    let [job, trouble, goesOn] = [null, '', true];
    try {
      job = await ask('GET', this.#path);
      goesOn = !job.result;
    } catch (error) {
      trouble = error.message;
      goesOn = !error.isFinal;
    }
    if (id !== this.#id) return;
    for (const part of [this.#talk, this.cancel, this.retry]) show(part, false);
    this.#complain(trouble);
    if (job) this.#draw(job);
    if (goesOn) this.#timer = setTimeout(() => this.#look(), POLL_MS);
  }

  #complain(text) {
    say(this.#trouble, text);
    show(this.#trouble, text !== '');
  }

  #draw(job) {
    const hasEnded = job.ended_ms !== null;
    const error = job.result?.error;
    say(this.#state, error ? `${job.state}: ${error.message} (${error.code})` : stateOf(job));
    this.#state.classList.toggle('trouble', Boolean(error));
    show(this.#talk, true);
    show(this.cancel, !hasEnded && isAtLeast(this.roleNow(), 'producer'));
    show(this.retry, hasEnded && !job.retried_as && isAtLeast(this.roleNow(), 'operator'));
    const told = JSON.stringify({...job, num_tokens: 0, num_events: 0, estimated_wait_s: 0});
    if (told === this.#shown) return; // selections stay
    this.#shown = told;
    this.#about.replaceChildren(...about(job));
  }

  async #end() {
    if (!(await isSure('Cancel this job? What it has written is kept.', 'Cancel it'))) return;
    await this.#act(() => ask('DELETE', this.#path));
  }

  async #runAgain() {
    if (!(await isSure('Run this job again? It becomes a new one, which names this.', 'Run again'))) return;
    await this.#act(async () => {
      const {id} = await ask('POST', `${this.#path}/retry`);
      location.hash = jobPlace(id);
    });
  }

  async #act(act) {
    try {
      await act();
    } catch (error) {
      this.#complain(error.message);
      return;
    }
    if (this.#id) await this.#look();
  }
}

function stateOf(job) {
  const place = job.position === null ? '' : `, number ${count(job.position)}`;
  return `${job.state}${place} · ${many(job.num_tokens, 'token')}`;
}

function about(job) {
  const asked = job.job ?? {};
  const {metadata = {}, ...rest} = Object.fromEntries(Object.entries(asked).filter(([name]) => !ASKED.includes(name)));
  const parts = [
    facts([
      ['Queue', job.queue], ['Worker', job.worker], ['Attempts', count(job.attempts)],
      ['Again as', job.retried_as && link(job.retried_as)],
      ['Runs again', metadata.retry_of && link(metadata.retry_of)],
      ...Object.entries(metadata).filter(([name]) => name !== 'retry_of'),
    ]),
    el('h3', {}, 'What became of it'), el('ol', {className: 'moments'}, ...job.timeline.map((one) => moment(one, job))),
    el('h3', {}, 'Parameters'), el('pre', {}, JSON.stringify(rest, null, 2)),
  ];
  for (const name of ASKED.filter((one) => asked[one])) {
    parts.push(el('h3', {}, name.replace('_', ' ')), el('pre', {}, textOf(asked[name])));
  }
  (job.result?.choices ?? (job.result ? [job.result] : [])).forEach((one, place) => {
    parts.push(el('h3', {}, place ? `Text ${place + 1}` : 'Text'), el('pre', {}, one.text));
  });
  return parts;
}

const link = (id) => el('a', {href: jobPlace(id)}, id);

const textOf = (value) => (typeof value === 'string' ? value : JSON.stringify(value, null, 2));

function moment({at_ms: ms, what, worker, note}, {submitted_ms: from}) {
  const who = worker ? ` on ${worker}` : '';
  const why = note ? `: ${note}` : '';
  const after = ms > from ? `, after ${span((ms - from) / 1000)}` : '';
  return el('li', {}, el('time', {dateTime: new Date(ms).toISOString()}, at(ms)), ` ${WHAT[what] ?? what}${who}${why}${after}`);
}
