// Figures and states in words.

const plain = new Intl.NumberFormat('en');

/** 1,234 */
export const count = (number) => plain.format(number);

/** 1 token, 2 tokens */
export const many = (number, word) => `${count(number)} ${word}${number === 1 ? '' : 's'}`;

/** A time in few characters, such as 340 ms or 2 m 5 s. */
export function span(seconds) {
  if (seconds === null || seconds === undefined) return '–';
  if (seconds < 1) return `${Math.round(1000 * seconds)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} m ${Math.floor(seconds) % 60} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 24 ? `${hours} h ${minutes % 60} m` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

const clock = new Intl.DateTimeFormat('en', {dateStyle: 'medium', timeStyle: 'medium', hourCycle: 'h23'});

/** A moment, given in unix milliseconds, by the clock of whoever looks. */
export const at = (ms) => clock.format(new Date(ms));

/** The first letters of a long id. */
export const short = (id) => (id.length > 13 ? `${id.slice(0, 8)}…` : id);

const ENDS = {
  stop: 'The model came to an end',
  length: 'Cut off at its length',
  cancelled: 'Stopped',
  deadline: 'Not finished by its deadline',
  error: 'Failed',
};

/** A job's state in a line. `link`: whether we hear of it; `quietS`: since when nothing has come. */
export function stateLine(job, link, quietS) {
  if (job.end) return endLine(job.end);
  if (link === 'lost') return 'The connection is lost. Trying again …';
  if (job.phase === 'waiting') return placeLine(job.place);
  const {worker} = job.starts.at(-1);
  const silence = quietS >= 3 ? ` · nothing for ${span(quietS)}: if the worker is dead, another goes on` : '';
  return `Running on ${worker} · ${many(job.numTokens, 'token')}${silence}`;
}

function placeLine(place) {
  if (!place) return 'Waiting';
  const wait = place.estimated_wait_s === null ? '' : `, about ${span(place.estimated_wait_s)}`;
  return `Waiting: number ${count(place.position)}${wait}`;
}

function endLine({finish_reason: reason, error, n, timings}) {
  const why = error ? `${ENDS.error}: ${error.message}` : ENDS[reason] ?? reason;
  const total = timings?.total_s ? ` in ${span(timings.total_s)}` : '';
  const first = timings?.ttft_s ? ` · first after ${span(timings.ttft_s)}` : '';
  return `${why} · ${many(n, 'token')}${total}${first}`;
}

/** A batch's rows in a line. */
export function batchLine({status, request_counts: {total, completed, failed}, errors}) {
  const [first] = errors?.data ?? [];
  if (first) return first.line ? `line ${count(first.line)}: ${first.message}` : first.message;
  if (!total) return status === 'validating' ? 'Its input is checked' : 'No row has run';
  return `${count(completed)} of ${many(total, 'row')}${failed ? `, ${count(failed)} failed` : ''}`;
}

/** Who took the job over from whom, a line each. */
export function takeovers(job) {
  return job.starts.slice(1).map(({worker, tokens}, place) => {
    const from = job.starts[place].worker;
    const who = from === worker ? `${worker} went on` : `${worker} went on for ${from}`;
    return `${who} after ${many(tokens, 'token')}`;
  });
}
