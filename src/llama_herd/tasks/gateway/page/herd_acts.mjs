// What operators do to the herd, each after a question: clear or pause a queue, drain a worker.
import {byId, say} from './dom.mjs';
import {isSure} from './question.mjs';
import {ask} from './server.mjs';
import {many} from './words.mjs';

const tell = (text) => say(byId('acted'), text);

/** End all jobs of a model. told(text): what came of it. */
export function clearQueue(model, num, told = tell) {
  const question = `End all ${many(num, 'job')} of ${model}, those that run and those that wait?`;
  return act(question, 'End all', `v1/queues/${encodeURIComponent(model)}/clear`,
    ({cancelled}) => `${many(cancelled, 'job')} of ${model} cancelled.`, told);
}

/** Let no worker take another job of a model, or end that. */
export function pauseQueue({model, is_paused: isPaused}) {
  const path = `v1/queues/${encodeURIComponent(model)}`;
  if (isPaused) return act(`Let workers take jobs of ${model} again?`, 'Resume', `${path}/resume`, () => `${model} goes on.`);
  const question = `Pause ${model}? No worker takes another job of it until you resume it. New jobs are accepted and wait.`;
  return act(question, 'Pause', `${path}/pause`, () => `${model} is paused.`);
}

/** Let a worker take no more jobs, or end that. */
export function drainWorker(name, isDrained) {
  const path = `v1/workers/${encodeURIComponent(name)}`;
  if (isDrained) return act(`Let ${name} take jobs again?`, 'Resume', `${path}/resume`, () => `${name} takes jobs again.`);
  const question = `Drain ${name}? It takes no more jobs until you resume it, and ends or hands back those that it has.`;
  return act(question, 'Drain', `${path}/drain`, () => `${name} is drained.`);
}

async function act(question, yes, path, said, told = tell) {
  if (!(await isSure(question, yes))) return;
  try {
    told(said(await ask('POST', path)));
  } catch (error) {
    told(error.message);
  }
}
