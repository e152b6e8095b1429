// The queues, and those that nobody serves.
import {button, byId, el, emptyLine, list, say} from './dom.mjs';
import {isSure} from './question.mjs';
import {ask} from './server.mjs';
import {count, many, span} from './words.mjs';

/** Draw all queues. mayClear: whether the key may end the jobs of those that nobody serves. */
export function drawQueues(queues, mayClear) {
  const body = byId('queues').tBodies[0];
  const cells = () => el('tr', {}, el('th', {scope: 'row'}), ...Array.from({length: 4}, () => el('td')));
  list(body, queues, (queue) => queue.queue, cells, drawQueue);
  emptyLine(body, 'tr', queues.length, 'No queue holds anything.', 5);
  const dead = queues.filter((queue) => !queue.workers);
  list(byId('dead-queues'), dead, (queue) => queue.model, ({model}) => newDead(model, mayClear), drawDead);
}

function drawQueue(row, queue) {
  const up = queue.workers - queue.loading;
  const values = [
    queue.model, count(queue.waiting), span(queue.oldest_s), count(queue.running),
    queue.workers ? `${up}${queue.loading ? ` + ${queue.loading}` : ''}` : 'none',
  ];
  values.forEach((value, place) => say(row.children[place], value));
  row.classList.toggle('bad', !queue.workers);
}

function newDead(model, mayClear) {
  const outcome = el('span', {role: 'status'});
  const item = el('li', {className: 'row'}, el('span', {className: 'told'}), outcome);
  if (mayClear) item.append(button('Clear', () => clearQueue(model, Number(item.dataset.num), (text) => say(outcome, text))));
  return item;
}

function drawDead(item, {model, waiting, running, depth, unserved_s: unservedS}) {
  const since = unservedS === null ? '' : ` for ${span(unservedS)}`;
  const num = waiting + running;
  const what = num ? `${many(num, 'job')} ${num === 1 ? 'is' : 'are'} left` : `${many(depth, 'message')} of no job that waits`;
  item.dataset.num = num;
  say(item.querySelector('.told'), `No worker serves ${model}${since}: ${what}.`);
}

/** Ask, and end all jobs of a model. told(text): what came of it. */
export async function clearQueue(model, num, told) {
  const question = `End all ${many(num, 'job')} of ${model}, those that run and those that wait?`;
  if (!(await isSure(question, 'End all'))) return;
  try {
    const {cancelled} = await ask('POST', `v1/queues/${encodeURIComponent(model)}/clear`);
    told(`${many(cancelled, 'job')} of ${model} cancelled.`);
  } catch (error) {
    told(error.message);
  }
}
