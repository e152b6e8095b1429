// The queues, and those that nobody serves.
import {button, byId, el, emptyLine, list, say} from './dom.mjs';
import {clearQueue, pauseQueue} from './herd_acts.mjs';
import {at, count, many, span} from './words.mjs';

const COLUMNS = 5;

/** Draw all queues. mayAct: whether the key may pause them, and clear those that nobody serves. */
export function drawQueues(queues, mayAct) {
  const body = byId('queues').tBodies[0];
  list(body, queues, (queue) => queue.queue, () => newQueue(mayAct), drawQueue);
  emptyLine(body, 'tr', queues.length, 'No queue holds anything.', COLUMNS);
  const dead = queues.filter(isDead);
  list(byId('dead-queues'), dead, (queue) => queue.model, ({model}) => newDead(model, mayAct), drawDead);
}

const isDead = (queue) => !queue.workers && !queue.is_paused;

function newQueue(mayAct) {
  const row = el('tr', {}, el('th', {scope: 'row'}), ...Array.from({length: COLUMNS - 1}, () => el('td')));
  if (mayAct) {
    const pause = button('Pause', () => pauseQueue(row.queue), 'plain pause');
    row.append(el('td', {className: 'act'}, pause));
  }
  return row;
}

function drawQueue(row, queue) {
  row.queue = queue;
  const {is_paused: isPaused, paused_until_ms: untilMs} = queue;
  const up = queue.workers - queue.loading - queue.drained;
  const more = [queue.loading && `${queue.loading} loading`, queue.drained && `${queue.drained} drained`].filter(Boolean);
  const workers = queue.workers ? [up || !more.length ? up : null, ...more].filter((one) => one !== null).join(' + ') : 'none';
  const values = [
    queue.model, count(queue.waiting), span(queue.oldest_s), count(queue.running), isPaused ? `paused · ${workers}` : workers,
  ];
  values.forEach((value, place) => say(row.children[place], value));
  row.title = isPaused && untilMs ? `Paused until ${at(untilMs)}` : '';
  row.classList.toggle('bad', isDead(queue));
  const pause = row.querySelector('.pause');
  if (pause) say(pause, isPaused ? 'Resume' : 'Pause');
  if (pause) pause.ariaLabel = `${isPaused ? 'Resume' : 'Pause'} ${queue.model}`;
}

function newDead(model, mayAct) {
  const item = el('li', {className: 'row'}, el('span', {className: 'told'}));
  if (mayAct) item.append(button('Clear', () => clearQueue(model, Number(item.dataset.num))));
  return item;
}

function drawDead(item, {model, waiting, running, depth, unserved_s: unservedS}) {
  const since = unservedS === null ? '' : ` for ${span(unservedS)}`;
  const num = waiting + running;
  const what = num ? `${many(num, 'job')} ${num === 1 ? 'is' : 'are'} left` : `${many(depth, 'message')} of no job that waits`;
  item.dataset.num = num;
  say(item.querySelector('.told'), `No worker serves ${model}${since}: ${what}.`);
}
