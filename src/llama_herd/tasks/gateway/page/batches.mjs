// The batches beside the herd: how far each is, its end, and its files.
import {byId, el, emptyLine, list, say, show} from './dom.mjs';
import {ask, send} from './server.mjs';
import {batchLine} from './words.mjs';

const POLL_MS = 3000;
const SHOWN = 20;
const RUNNING = ['validating', 'in_progress', 'finalizing', 'cancelling'];

/** Looks at the batches every few seconds, as long as the key may see them and somebody looks at the page. */
export class Batches {
  #timer = null;
  #isAllowed = false;

  constructor() {
    document.addEventListener('visibilitychange', () => document.hidden || this.#look());
  }

  /** Whether the key may see batches. */
  allow(isAllowed) {
    if (isAllowed === this.#isAllowed) return;
    this.#isAllowed = isAllowed;
    if (isAllowed) this.#look();
    else show(byId('batches-part'), false);
  }

  async #look() {
    clearTimeout(this.#timer);
    if (!this.#isAllowed) return;
    try {
      const found = await ask('GET', `v1/batches?limit=${SHOWN}`, {signal: AbortSignal.timeout(10_000)});
      this.#draw(found.data);
    } catch {
      show(byId('batches-part'), false); // the herd says what is wrong
    }
    clearTimeout(this.#timer);
    if (!document.hidden) this.#timer = setTimeout(() => this.#look(), POLL_MS);
  }

  #draw(batches) {
    show(byId('batches-part'), true);
    list(byId('batch-list'), batches, (batch) => batch.id, (batch) => this.#made(batch), draw);
    emptyLine(byId('batch-list'), 'li', batches.length, 'There is none.');
  }

  #made({id}) {
    const cancel = el('button', {type: 'button', className: 'plain cancel'}, 'Cancel');
    cancel.addEventListener('click', () => this.#act(cancel, () => ask('POST', `v1/batches/${id}/cancel`)));
    return el('li', {className: 'batch'},
      el('p', {className: 'head'}, el('strong', {title: id}, `${id.slice(0, 14)}…`), el('span', {className: 'state'})),
      el('span', {className: 'bar'}, el('i')),
      el('p', {className: 'about'}),
      el('p', {className: 'row'}, this.#file('output', 'Answers'), this.#file('error', 'Errors'), cancel));
  }

  #file(kind, text) {
    const button = el('button', {type: 'button', className: `plain ${kind}`, hidden: true}, text);
    button.addEventListener('click', () => this.#act(button, () => download(button.dataset.file)));
    return button;
  }

  /** Do it once; what goes wrong is said at the button. */
  async #act(button, act) {
    button.disabled = true;
    try {
      await act();
      button.title = '';
    } catch (error) {
      button.title = error.message;
    }
    button.disabled = false;
    this.#look();
  }
}

function draw(item, batch) {
  const {total, completed, failed} = batch.request_counts;
  say(item.querySelector('.state'), batch.status.replace('_', ' '));
  item.dataset.state = RUNNING.includes(batch.status) ? 'ready' : 'other';
  item.querySelector('i').style.width = `${total ? Math.round((100 * (completed + failed)) / total) : 0}%`;
  say(item.querySelector('.about'), batchLine(batch));
  show(item.querySelector('.cancel'), ['validating', 'in_progress'].includes(batch.status));
  for (const kind of ['output', 'error']) {
    const button = item.querySelector(`.${kind}`);
    show(button, Boolean(batch[`${kind}_file_id`]));
    button.dataset.file = batch[`${kind}_file_id`] ?? '';
  }
}

/** Save a file. A link alone would bring no key along. */
async function download(fileId) {
  const answer = await send('GET', `v1/files/${fileId}/content`);
  const href = URL.createObjectURL(await answer.blob());
  el('a', {href, download: `${fileId}.jsonl`}).click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000);
}
