// The page: its views, as far as the key may see them, and the door where a key is asked for.
import {Batches} from './batches.mjs';
import {Dead} from './dead.mjs';
import {byId, say, show} from './dom.mjs';
import {Herd} from './herd.mjs';
import {Job} from './job.mjs';
import {Jobs} from './jobs.mjs';
import {Play} from './play.mjs';
import {Refusal, ask, key} from './server.mjs';
import {isAtLeast, may, placeOf} from './views.mjs';

/** The key's; null: nobody has said yet. */
let role = null;
/** The view that is shown. */
let shown = null;
let standingModels = [];

const play = new Play(onRefused);
const herd = new Herd(onHerd, onRefused);
const batches = new Batches();
const views = {
  play, jobs: new Jobs(byId('view-jobs')), job: new Job(byId('view-job'), () => role), dead: new Dead(byId('view-dead')),
};

/** Show what the address names. */
function open() {
  const place = placeOf(location.hash);
  if (role === null && place.view !== 'play') return; // the herd says soon who we are
  const view = role === null || may(role, place.view) ? place.view : 'denied';
  const isNew = view !== shown;
  document.body.dataset.view = view;
  if (isNew) views[shown]?.close?.();
  for (const link of byId('views').children) {
    if (link.dataset.view === (view === 'job' ? 'jobs' : view)) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  views[view]?.open(place);
  const heading = isNew && shown && byId(`view-${view}`)?.querySelector('h2');
  shown = view;
  if (!heading) return;
  heading.tabIndex = -1;
  heading.focus();
}

function onHerd(found) {
  const isOther = role !== found.role;
  role = found.role;
  play.offer(modelsOf(found), isAtLeast(role, 'producer'));
  batches.allow(may(role, 'batches'));
  views.jobs.know(found);
  for (const link of byId('views').children) show(link, may(role, link.dataset.view));
  byId('views').querySelector('[data-view=play]').href = play.place;
  const num = (found.dead_letters ?? 0) + (found.poisoned ?? 0);
  say(byId('num-dead'), num ? ` ${num}` : '');
  say(byId('whose'), key.get() ? `${found.tenant} · ${found.role}` : '');
  show(byId('forget'), Boolean(key.get()));
  if (isOther && placeOf(location.hash).view !== 'play') open();
}

/** What jobs can be sent for: names, and what a worker says of each model. */
function modelsOf({workers}) {
  const served = new Map(standingModels.map((name) => [name, null]));
  for (const worker of workers) served.set(worker.model, worker);
  return new Map([...served].sort(([one], [other]) => (one < other ? -1 : 1)));
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

/** Begin to look: at the models, the herd, and what the address names. */
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
addEventListener('popstate', open);
begin();
byId('prompt').focus();
