// What is to be asked: the fields of the form as a job of POST /v1/jobs.
import {byId, el, say, show} from './dom.mjs';

const NUMBERS = ['max_tokens', 'temperature', 'top_p', 'top_k', 'min_p', 'repetition_penalty', 'seed', 'n'];

export class Form {
  #form = byId('ask');
  #names = null;
  /** What a worker says of each model; null: no worker is up. */
  #models = new Map();
  /** The sampling that the fields show, as its worker says it. */
  #recommended = '';
  /** Whether the user has chosen between text and chat. */
  #isChosen = false;

  /** onSend() when the user wants to send, onStop() to stop. */
  constructor(onSend, onStop) {
    this.#form.addEventListener('submit', (event) => {
      event.preventDefault();
      if (!byId('send').hidden) onSend();
    });
    this.#form.addEventListener('keydown', (event) => {
      if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) this.#form.requestSubmit();
    });
    this.#form.addEventListener('invalid', () => this.#open(), true);
    this.#form.addEventListener('change', ({target}) => {
      this.#isChosen ||= target.name === 'kind';
      if (target.name === 'model') this.#follow(false);
      this.#setKind();
    });
    byId('stop').addEventListener('click', onStop);
    this.#setKind();
  }

  get kind() { return this.#of('kind').value; }

  set kind(kind) {
    this.#of('kind').value = kind;
    this.#setKind();
  }

  get prompt() { return this.#of('prompt').value; }

  set prompt(text) { this.#of('prompt').value = text; }

  /** The job; `before` are the messages of the chat so far. */
  job(before) {
    const sampling = {};
    for (const name of NUMBERS) {
      if (this.#of(name).value !== '') sampling[name] = Number(this.#of(name).value);
    }
    const stop = this.#of('stop').value.split('\n').filter(Boolean);
    if (stop.length) sampling.stop = stop;
    const job = {sampling, ...this.#what(before)};
    if (this.#of('model').value) job.model = this.#of('model').value;
    if (this.#of('priority').value) job.priority = Number(this.#of('priority').value);
    return job;
  }

  #what(before) {
    if (this.kind === 'text') return {prompt: this.prompt};
    const system = this.#of('system').value;
    const first = system ? [{role: 'system', content: system}] : [];
    return {messages: [...first, ...before, {role: 'user', content: this.prompt}]};
  }

  /** Offer these models, by their names, with what a worker says of each. The one that is chosen stays. */
  offer(models, hasBegun) {
    this.#models = models;
    const names = [...models.keys()];
    if (names.join(' ') !== this.#names) {
      this.#names = names.join(' ');
      const select = this.#of('model');
      const chosen = select.value;
      const options = names.length ? names : [''];
      select.replaceChildren(...options.map((name) => el('option', {value: name}, name || 'no worker is up')));
      if (options.includes(chosen)) select.value = chosen;
    }
    this.#follow(hasBegun);
  }

  /** Do as the chosen model is meant to be used, where the user has not said otherwise. */
  #follow(hasBegun) {
    const model = this.#models.get(this.#of('model').value);
    if (!model) return;
    this.#recommend(model);
    if (hasBegun || this.#isChosen || this.prompt) return;
    const kind = model.chats ? 'chat' : 'text';
    if (kind !== this.kind) this.kind = kind;
  }

  /** The sampling that its files recommend, in the fields that the user has not changed. */
  #recommend(model) {
    if (model.sampling === this.#recommended) return;
    this.#recommended = model.sampling;
    const own = JSON.parse(model.sampling || '{}');
    for (const name of NUMBERS) {
      const field = this.#of(name);
      field.dataset.plain ??= field.defaultValue;
      field.defaultValue = own[name] ?? field.dataset.plain;
    }
  }

  /** Whether a job is under way, which can be stopped. The focus stays where the user's finger is. */
  setBusy(isBusy) {
    const [send, stop] = [byId('send'), byId('stop')];
    const hadFocus = document.activeElement === (isBusy ? send : stop);
    show(send, !isBusy);
    show(stop, isBusy);
    if (hadFocus) (isBusy ? stop : send).focus();
  }

  /** A key that may only read sends nothing. */
  allow(maySend) {
    byId('fields').disabled = !maySend;
    byId('send').disabled = !maySend;
    show(byId('may-not'), !maySend);
  }

  /** Say what was wrong, and at which field; null: nothing. */
  complain(message, param = null) {
    for (const field of this.#form.querySelectorAll('[aria-invalid]')) field.removeAttribute('aria-invalid');
    say(byId('trouble'), message ?? '');
    show(byId('trouble'), Boolean(message));
    const field = param && this.#form.elements[param.replace(/^sampling\./, '').replace(/[.[].*/, '')];
    if (field instanceof HTMLElement) {
      field.setAttribute('aria-invalid', 'true');
      this.#open();
      field.focus();
    }
  }

  #of(name) { return this.#form.elements[name]; }

  #open() { this.#form.querySelector('details').open = true; }

  #setKind() {
    document.body.dataset.kind = this.kind;
    this.#of('prompt').placeholder = this.kind === 'chat' ? 'Say something' : 'Once upon a time';
  }
}
