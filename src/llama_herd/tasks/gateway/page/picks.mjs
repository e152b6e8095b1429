// Rows that are ticked, and buttons that do the same to each of them.
import {el, say, show} from './dom.mjs';
import {isSure} from './question.mjs';
import {Refusal} from './server.mjs';
import {count} from './words.mjs';

export class Picks {
  #boxes = new Map(); // by the row's id
  #buttons = [];
  #all = el('input', {type: 'checkbox'});
  #num = el('span', {}, 'All');
  #said = el('output', {className: 'hint'});

  /** onDone() after something was done to rows. */
  constructor(onDone) {
    this.onDone = onDone;
    this.bar = el('div', {className: 'row picks'}, el('label', {className: 'tick'}, this.#all, this.#num), this.#said);
    this.#all.addEventListener('change', () => {
      for (const box of this.#boxes.values()) box.checked = this.#all.checked;
      this.#tell();
    });
    this.#tell();
  }

  /** The ids of the ticked rows. */
  get ids() { return [...this.#boxes].filter(([, box]) => box.checked).map(([id]) => id); }

  /** The box of a new row. */
  box(id) {
    const box = el('input', {type: 'checkbox', ariaLabel: `Pick ${id}`});
    box.addEventListener('change', () => this.#tell());
    this.#boxes.set(id, box);
    return box;
  }

  /** Forget all rows but these. */
  keep(ids) {
    const kept = new Set(ids);
    for (const id of this.#boxes.keys()) if (!kept.has(id)) this.#boxes.delete(id);
    show(this.bar, this.#boxes.size > 0 || this.#said.textContent !== '');
    this.#tell();
  }

  /** Say what was done; empty: nothing. */
  say(text) { say(this.#said, text); }

  /** A button that asks question(num), does act(id) for each ticked row, and then says said(num). */
  action(name, {question, said, act}) {
    const made = el('button', {type: 'button', className: 'plain'}, name);
    made.addEventListener('click', async () => {
      const ids = this.ids;
      if (!(await isSure(question(ids.length), name))) return;
      made.disabled = true;
      const refused = await toEach(ids, act, (num) => this.say(`${count(num)} of ${count(ids.length)} …`));
      const rest = refused.length ? ` ${count(refused.length)} not: ${refused[0].message}.` : '';
      this.say(`${said(ids.length - refused.length)}.${rest}`);
      await this.onDone();
    });
    this.#buttons.push(made);
    this.bar.insertBefore(made, this.#said);
    return made;
  }

  #tell() {
    const num = this.ids.length;
    say(this.#num, num ? `${count(num)} picked` : 'All');
    this.#all.checked = num > 0 && num === this.#boxes.size;
    for (const one of this.#buttons) one.disabled = !num;
  }
}

/** Do it to each, one after the other. Returns what was refused; waits as long as the key has asked too often. */
async function toEach(ids, act, onStep) {
  const refused = [];
  for (const [place, id] of ids.entries()) {
    onStep(place + 1);
    try {
      await patiently(() => act(id));
    } catch (error) {
      refused.push(error);
    }
  }
  return refused;
}

async function patiently(act) {
  for (;;) {
    try {
      return await act();
    } catch (error) {
      if (!(error instanceof Refusal && error.code === 'rate_limit_exceeded')) throw error;
      await new Promise((go) => setTimeout(go, 1000 * (error.retryAfterS ?? 1)));
    }
  }
}
