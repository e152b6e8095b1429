// What a job has said so far: a fold of its events.

/** The state of a job that nothing is known of yet. */
export function unknownJob() {
  return {
    phase: 'waiting', // then running, then ended
    place: null, // {position, estimated_wait_s} while it waits
    last: '0', // id of the last event: its number, and a mark of what it says
    texts: [''], // one for each output
    numTokens: 0,
    starts: [], // {worker, tokens}: who went on, and after how many tokens
    end: null,
  };
}

/** Take one event into the state. An event that came before changes nothing. */
export function fold(job, {id, name, data}) {
  const event = JSON.parse(data);
  if (name === 'queued') {
    if (job.phase === 'waiting') job.place = event;
    return;
  }
  if (!(numberOf(id) > numberOf(job.last))) return;
  job.last = id;
  if (name === 'started') {
    job.phase = 'running';
    job.model = event.model;
    job.starts.push({worker: event.worker, tokens: job.numTokens});
    while (job.texts.length < event.n) job.texts.push('');
  } else if (name === 'token') {
    job.texts[event.choice ?? 0] = (job.texts[event.choice ?? 0] ?? '') + event.text;
    job.numTokens += event.ids.length;
  } else if (name === 'end') {
    job.phase = 'ended';
    job.end = event;
  }
}

const numberOf = (id) => Number.parseInt(id, 10);
