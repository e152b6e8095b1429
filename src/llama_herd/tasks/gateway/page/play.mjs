// The playground: a talk with the herd, which a link holds.
import {unknownJob} from './answer.mjs';
import {byId, say, show} from './dom.mjs';
import {follow} from './follow.mjs';
import {Form} from './form.mjs';
import {Refusal, ask} from './server.mjs';
import {Turn} from './turn.mjs';
import {stateLine} from './words.mjs';

export class Play {
  /** The turns so far: {kind, asked, jobId, answer}. The browser keeps them with this entry of its history. */
  #turns = [];
  /** What is followed now: {turn, job, stop}. */
  #now = null;
  /** A submission that failed on the way is repeated under the same name, so that it runs once. */
  #submission = {body: '', name: ''};
  #form = new Form(() => this.#submit(), () => this.#stop());

  /** onRefused(error) when the gateway does not let us. */
  constructor(onRefused) {
    this.onRefused = onRefused;
    byId('new').addEventListener('click', () => this.#begin());
    for (const examples of document.querySelectorAll('.examples')) {
      examples.addEventListener('click', (event) => {
        if (event.target.localName !== 'button') return;
        this.#form.prompt = event.target.textContent;
        byId('prompt').focus();
      });
    }
    new ResizeObserver(([{target}]) => {
      document.documentElement.style.setProperty('--form', `${target.offsetHeight}px`);
    }).observe(byId('ask'));
  }

  /** The address of the talk. */
  get place() {
    const jobId = this.#turns.at(-1)?.jobId;
    return jobId ? `#job=${encodeURIComponent(jobId)}` : '#';
  }

  /** Offer these models, and let the key send or not. */
  offer(models, maySend) {
    this.#form.offer(models, this.#turns.length > 0);
    this.#form.allow(maySend);
  }

  /** Show what this entry of the history holds. A talk that is shown already goes on. */
  open() {
    const jobId = decodeURIComponent(/^#job=(.+)$/.exec(location.hash)?.[1] ?? '');
    const kept = history.state?.turns ?? [];
    if (jobId && !kept.length && this.#turns.at(-1)?.jobId === jobId) {
      history.replaceState({turns: this.#turns}, '');
      return;
    }
    this.#turns = kept.at(-1)?.jobId === jobId ? kept : jobId ? [{kind: 'text', asked: null, jobId}] : [];
    this.#leave();
    byId('turns').replaceChildren();
    show(byId('welcome'), !this.#turns.length);
    this.#turns.slice(0, -1).forEach((one) => this.#add(one).showOld(one.answer ?? ''));
    if (this.#turns.length) {
      this.#form.kind = this.#turns.at(-1).kind;
      this.#watch(this.#add(this.#turns.at(-1)));
    }
  }

  #begin() {
    this.#leave();
    history.pushState(null, '', location.pathname);
    this.open();
    byId('prompt').focus();
  }

  #add(one) {
    const turn = new Turn(one);
    byId('turns').append(turn.node);
    return turn;
  }

  /** Stop looking at a job; it goes on. */
  #leave() {
    this.#now?.stop.abort();
    this.#now = null;
    this.#form.setBusy(false);
  }

  /** Follow the job of the last turn up to its end. */
  async #watch(turn) {
    const mine = {turn, job: unknownJob(), stop: new AbortController()};
    this.#now = mine;
    this.#form.setBusy(true);
    let link = 'open';
    let newsMs = performance.now();
    let isDue = false;
    const draw = () => {
      isDue = false;
      const quietS = (performance.now() - newsMs) / 1000;
      if (this.#now === mine) keepInView(turn.node.lastChild, () => turn.draw(mine.job, link, quietS));
    };
    const ticks = setInterval(draw, 1000);
    let phase = '';
    draw();
    try {
      await follow(turn.jobId, mine.job, mine.stop.signal, (state) => {
        [link, newsMs] = [state, performance.now()];
        if (phase !== mine.job.phase + link) say(byId('said'), stateLine(mine.job, link, 0));
        phase = mine.job.phase + link;
        if (!isDue) requestAnimationFrame(draw);
        isDue = true;
      });
      if (this.#now !== mine) return;
      this.#turns.at(-1).answer = mine.job.texts[0];
      if (location.hash === this.place) history.replaceState({turns: this.#turns}, '');
      draw();
    } catch (error) {
      if (this.#now !== mine) return;
      turn.fail(error.message);
      this.onRefused(error);
    } finally {
      clearInterval(ticks);
      if (this.#now === mine) this.#form.setBusy(false);
    }
  }

  async #submit() {
    this.#form.complain(null);
    const kind = this.#form.kind;
    const asked = this.#form.prompt;
    const chat = this.#turns.filter((one) => one.kind === 'chat' && one.asked !== null && one.answer);
    const before = chat.flatMap((one) => [
      {role: 'user', content: one.asked}, {role: 'assistant', content: one.answer.trim()},
    ]);
    const body = this.#form.job(before);
    const text = JSON.stringify(body);
    if (text !== this.#submission.body) this.#submission = {body: text, name: randomName()};
    this.#form.setBusy(true);
    try {
      const {id} = await ask('POST', 'v1/jobs', {body, headers: {'Idempotency-Key': this.#submission.name}});
      this.#submission = {body: '', name: ''};
      this.#turns = [...this.#turns, {kind, asked, jobId: id}];
      history.pushState({turns: this.#turns}, '', this.place);
      if (kind === 'chat') this.#form.prompt = '';
      show(byId('welcome'), false);
      const turn = this.#add(this.#turns.at(-1));
      turn.node.scrollIntoView({block: 'end'});
      this.#watch(turn);
    } catch (error) {
      this.#form.setBusy(false);
      this.#complain(error);
    }
  }

  async #stop() {
    try {
      if (this.#now) await ask('DELETE', `v1/jobs/${this.#now.turn.jobId}`);
    } catch (error) {
      this.#complain(error);
    }
  }

  #complain(error) {
    const when = error.retryAfterS ? ` Try again in ${error.retryAfterS} s.` : '';
    const said = error instanceof Refusal ? `${error.message}.${when}` : 'The gateway does not answer. Try again.';
    this.#form.complain(said, error.param);
    this.onRefused(error);
  }
}

/** Change something above an element. If it was in view it stays there. */
function keepInView(element, change) {
  const {bottom, height} = element.getBoundingClientRect();
  change();
  if (height && bottom <= innerHeight) element.scrollIntoView({block: 'nearest'});
}

function randomName() {
  return Array.from(crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(36)).join('-');
}
