// The page: a talk with the herd, which a link holds, and the herd beside it.
import {unknownJob} from './answer.mjs';
import {Batches} from './batches.mjs';
import {byId, say, show} from './dom.mjs';
import {follow} from './follow.mjs';
import {Form} from './form.mjs';
import {Herd} from './herd.mjs';
import {Refusal, ask, key} from './server.mjs';
import {Turn} from './turn.mjs';
import {stateLine} from './words.mjs';

/** The turns so far: {kind, asked, jobId, answer}. The browser keeps them with this entry of its history. */
let turns = [];
/** What is followed now: {turn, job, stop}. */
let now = null;
/** A submission that failed on the way is repeated under the same name, so that it runs once. */
let submission = {body: '', name: ''};
let standingModels = [];

const form = new Form(submit, stopJob);
const herd = new Herd(onHerd, onRefused);
const batches = new Batches();

const jobInLink = () => decodeURIComponent(/^#job=(.+)$/.exec(location.hash)?.[1] ?? '');

/** Show what this entry of the history holds. */
function open() {
  const jobId = jobInLink();
  const kept = history.state?.turns ?? [];
  turns = kept.at(-1)?.jobId === jobId ? kept : jobId ? [{kind: 'text', asked: null, jobId}] : [];
  leave();
  byId('turns').replaceChildren();
  show(byId('welcome'), !turns.length);
  turns.slice(0, -1).forEach((one) => add(one).showOld(one.answer ?? ''));
  if (turns.length) {
    form.kind = turns.at(-1).kind;
    watch(add(turns.at(-1)));
  }
}

function add(one) {
  const turn = new Turn(one);
  byId('turns').append(turn.node);
  return turn;
}

/** Stop looking at a job; it goes on. */
function leave() {
  now?.stop.abort();
  now = null;
  form.setBusy(false);
}

/** Follow the job of the last turn up to its end. */
async function watch(turn) {
  const mine = {turn, job: unknownJob(), stop: new AbortController()};
  now = mine;
  form.setBusy(true);
  let link = 'open';
  let newsMs = performance.now();
  let isDue = false;
  const draw = () => {
    isDue = false;
    if (now === mine) keepInView(turn.node.lastChild, () => turn.draw(mine.job, link, (performance.now() - newsMs) / 1000));
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
    if (now !== mine) return;
    turns.at(-1).answer = mine.job.texts[0];
    history.replaceState({turns}, '');
    draw();
  } catch (error) {
    if (now !== mine) return;
    turn.fail(error.message);
    onRefused(error);
  } finally {
    clearInterval(ticks);
    if (now === mine) form.setBusy(false);
  }
}

/** Change something above an element. If it was in view it stays there. */
function keepInView(element, change) {
  const wasSeen = element.getBoundingClientRect().bottom <= innerHeight;
  change();
  if (wasSeen) element.scrollIntoView({block: 'nearest'});
}

async function submit() {
  form.complain(null);
  const kind = form.kind;
  const asked = form.prompt;
  const chat = turns.filter((one) => one.kind === 'chat' && one.asked !== null && one.answer);
  const before = chat.flatMap((one) => [
    {role: 'user', content: one.asked}, {role: 'assistant', content: one.answer.trim()},
  ]);
  const body = form.job(before);
  const text = JSON.stringify(body);
  if (text !== submission.body) submission = {body: text, name: randomName()};
  form.setBusy(true);
  try {
    const {id} = await ask('POST', 'v1/jobs', {body, headers: {'Idempotency-Key': submission.name}});
    submission = {body: '', name: ''};
    turns = [...turns, {kind, asked, jobId: id}];
    history.pushState({turns}, '', `#job=${encodeURIComponent(id)}`);
    if (kind === 'chat') form.prompt = '';
    show(byId('welcome'), false);
    const turn = add(turns.at(-1));
    turn.node.scrollIntoView({block: 'end'});
    watch(turn);
  } catch (error) {
    form.setBusy(false);
    complain(error);
  }
}

async function stopJob() {
  try {
    if (now) await ask('DELETE', `v1/jobs/${now.turn.jobId}`);
  } catch (error) {
    complain(error);
  }
}

function complain(error) {
  const when = error.retryAfterS ? ` Try again in ${error.retryAfterS} s.` : '';
  form.complain(error instanceof Refusal ? `${error.message}.${when}` : 'The gateway does not answer. Try again.', error.param);
  onRefused(error);
}

function randomName() {
  return Array.from(crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(36)).join('-');
}

function onHerd(found) {
  const served = found.workers.map((worker) => worker.model);
  form.offer([...new Set([...served, ...standingModels])].sort());
  form.allow(found.role !== 'subscriber');
  batches.allow(found.role !== 'subscriber');
  say(byId('whose'), key.get() ? `${found.tenant} · ${found.role}` : '');
  show(byId('forget'), Boolean(key.get()));
}

/** Ask for a key if that is what the gateway wants. */
function onRefused(error) {
  if (error instanceof Refusal && error.status === 401 && !byId('door').open) byId('door').showModal();
}

async function comeIn(event) {
  event.preventDefault();
  key.keep(byId('key').value.trim());
  try {
    await ask('GET', 'v1/herd');
  } catch (error) {
    key.forget();
    say(byId('door-trouble'), error instanceof Refusal ? `${error.message}.` : 'The gateway does not answer.');
    return;
  }
  byId('door').close();
  byId('key').value = '';
  begin();
}

/** Begin to look: at the models, the herd, and the job in the link. */
async function begin() {
  herd.look();
  open();
  try {
    standingModels = (await ask('GET', 'v1/models')).data.map((model) => model.id);
  } catch (error) {
    onRefused(error);
  }
}

byId('door-form').addEventListener('submit', comeIn);
byId('door').addEventListener('cancel', (event) => event.preventDefault());
byId('forget').addEventListener('click', () => {
  key.forget();
  location.reload();
});
byId('new').addEventListener('click', () => {
  leave();
  history.pushState(null, '', location.pathname);
  open();
  byId('prompt').focus();
});
byId('examples').addEventListener('click', (event) => {
  if (event.target.localName !== 'button') return;
  form.prompt = event.target.textContent;
  byId('prompt').focus();
});
new ResizeObserver(([{target}]) => {
  document.documentElement.style.setProperty('--form', `${target.offsetHeight}px`);
}).observe(byId('ask'));
addEventListener('popstate', open);
begin();
byId('prompt').focus();
