// One job on the page: what was asked, what is answered, and how it stands.
import {el, list, say, show} from './dom.mjs';
import {jobPlace} from './views.mjs';
import {stateLine, takeovers} from './words.mjs';

export class Turn {
  /** asked: the prompt, or null if only the job's link is known. */
  constructor({kind, asked, jobId}) {
    this.jobId = jobId;
    this.isChat = kind === 'chat';
    this.state = el('p', {className: 'state'});
    this.notes = el('ul', {className: 'notes'});
    this.link = el('a', {className: 'link'}, 'Link');
    this.about = el('a', {}, 'About it');
    this.copy = el('button', {type: 'button', className: 'plain'}, 'Copy link');
    this.copy.addEventListener('click', () => this.#copyLink());
    this.answers = el('div', {className: 'answers'});
    this.node = el('article', {className: this.isChat ? 'turn chat' : 'turn'});
    if (asked === null) this.node.append(el('p', {className: 'hint'}, 'Opened by its link, which does not tell what was asked.'));
    else if (this.isChat) this.node.append(el('p', {className: 'asked'}, asked));
    this.asked = this.isChat ? null : asked;
    this.node.append(this.answers, this.notes,
      el('footer', {}, this.state, el('span', {className: 'links'}, this.about, this.link, this.copy)));
    this.setJob(jobId);
  }

  setJob(jobId) {
    this.jobId = jobId;
    for (const part of [this.about, this.link, this.copy]) part.hidden = !jobId;
    if (!jobId) return;
    this.link.href = `#job=${encodeURIComponent(jobId)}`;
    this.about.href = jobPlace(jobId);
  }

  /** Show an answer that was given before. */
  showOld(text) {
    this.node.classList.add('old');
    this.#text(0, text);
  }

  /** Show that nothing can be said of the job. */
  fail(message) {
    this.node.classList.remove('live');
    this.node.classList.add('bad');
    this.answers.setAttribute('aria-busy', 'false');
    say(this.state, message);
  }

  /** Show how the job stands now. */
  draw(job, link, quietS) {
    job.texts.forEach((text, place) => this.#text(place, text));
    this.answers.classList.toggle('several', job.texts.length > 1);
    const isUnderWay = !job.end;
    this.answers.setAttribute('aria-busy', String(isUnderWay));
    this.node.classList.toggle('live', isUnderWay && job.phase === 'running');
    this.node.classList.toggle('bad', Boolean(job.end?.error) || link === 'lost');
    say(this.state, stateLine(job, link, quietS));
    const lines = takeovers(job).map((text, place) => ({text, place}));
    list(this.notes, lines, ({place}) => place, () => el('li'), (item, {text}) => say(item, text));
    show(this.notes, job.starts.length > 1);
  }

  /** Append what is new of a text: what is there stays selected. */
  #text(place, text) {
    while (this.answers.children.length <= place) this.answers.append(this.#newAnswer());
    const node = this.answers.children[place].lastChild.firstChild;
    const shown = this.isChat || this.asked === null ? text.replace(/^ /, '') : text;
    if (shown.startsWith(node.data)) node.appendData(shown.slice(node.length));
    else node.data = shown;
  }

  #newAnswer() {
    const text = el('span', {className: 'said'});
    text.append(document.createTextNode(''));
    const asked = this.asked === null ? [] : [el('span', {className: 'given'}, this.asked)];
    return el('p', {className: 'answer'}, ...asked, text);
  }

  async #copyLink() {
    try {
      await navigator.clipboard.writeText(this.link.href);
      say(this.copy, 'Copied');
    } catch { // not without TLS
      getSelection().selectAllChildren(this.link);
      say(this.copy, 'Copy it from the link');
    }
    setTimeout(() => say(this.copy, 'Copy link'), 2000);
  }
}
