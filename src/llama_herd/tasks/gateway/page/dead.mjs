// What is dead: messages that nobody could read, and jobs that were given up. Read, sent again, dropped.
import {el, emptyLine, facts, list, say, show, table} from './dom.mjs';
import {Picks} from './picks.mjs';
import {ask, send} from './server.mjs';
import {jobPlace} from './views.mjs';
import {at, count, many, short} from './words.mjs';

const COLUMNS = ['', 'What', 'When', 'Why', 'Queue', 'Worker', 'Sender', 'Bytes'];
const MOST = 500;

export class Dead {
  #numLooks = 0;
  #trouble = el('p', {className: 'trouble', role: 'alert', hidden: true});
  #letter = el('section', {ariaLabel: 'A letter', hidden: true});
  #picks = new Picks(() => this.#look());

  constructor(box) {
    const [scroll, body] = table('Dead letters', ...COLUMNS);
    this.body = body;
    this.again = this.#picks.action('Send again', {
      question: (num) => `Send ${many(num, 'item')} again? A message goes back to its queue, a job runs under a new id.`,
      said: (num) => `${many(num, 'item')} sent again`,
      act: (name) => ask('POST', `${pathOf(name)}/retry`),
    });
    this.drop = this.#picks.action('Drop', {
      question: (num) => `Drop ${many(num, 'item')} for ever? Nobody can bring them back.`,
      said: (num) => `${many(num, 'item')} dropped`,
      act: (name) => send('DELETE', pathOf(name)),
    });
    box.append(el('h2', {}, 'Dead letters'),
      el('p', {className: 'hint'}, 'Messages that no worker could read, and jobs whose workers died of them.'),
      this.#trouble, this.#picks.bar, this.#letter, scroll);
  }

  async open({id}) {
    this.#picks.say('');
    await Promise.all([this.#look(), this.#read(id)]);
  }

  async #look() {
    const look = ++this.#numLooks;
    let [found, trouble] = [[], ''];
    try {
      found = (await ask('GET', `v1/dead?limit=${MOST}`)).data;
    } catch (error) {
      trouble = error.message;
    }
    if (look !== this.#numLooks) return; // a later one knows better
    this.#complain(trouble);
    list(this.body, found, (one) => one.name, (one) => this.#made(one), () => {});
    emptyLine(this.body, 'tr', found.length, 'Nothing is dead.', COLUMNS.length);
    this.#picks.keep(found.map((one) => one.name));
  }

  #complain(text) {
    say(this.#trouble, text);
    show(this.#trouble, text !== '');
  }

  #made(one) {
    const href = one.kind === 'job' ? jobPlace(one.name) : `#dead/${encodeURIComponent(one.name)}`;
    const name = one.kind === 'job' ? `Job ${short(one.name)}` : `Letter ${one.name}`;
    const values = [
      at(one.at_ms), one.reason, one.queue, one.worker ?? '–', one.origin ?? '–',
      one.num_bytes === null ? '–' : count(one.num_bytes),
    ];
    return el('tr', {}, el('td', {}, this.#picks.box(one.name)), el('th', {scope: 'row'}, el('a', {href, title: one.name}, name)),
      ...values.map((value) => el('td', {title: value}, value)));
  }

  /** Show a letter; empty: none. */
  async #read(name) {
    show(this.#letter, name !== '');
    if (!name) return;
    try {
      const one = await ask('GET', pathOf(name));
      this.#letter.replaceChildren(el('h3', {}, `Letter ${name}`), facts([
        ['Put here', at(one.at_ms)], ['Why', one.reason], ['Queue', one.queue], ['Worker', one.worker],
        ['Task', one.task], ['Celery’s id', one.task_id], ['Sender', one.origin],
        ['Length', `${count(one.num_bytes)} bytes${one.is_whole ? '' : ', of which only the beginning is kept'}`],
      ]), el('pre', {}, one.body));
    } catch (error) {
      this.#letter.replaceChildren(el('p', {className: 'trouble'}, error.message));
    }
  }
}

const pathOf = (name) => `v1/dead/${encodeURIComponent(name)}`;
