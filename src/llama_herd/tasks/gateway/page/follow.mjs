// Follows a job to its end, through lost connections and deaths.
import {fold, unknownJob} from './answer.mjs';
import {events} from './server.mjs';

const FIRST_PAUSE_MS = 300;
const MOST_PAUSE_MS = 5000;

/**
 * Fold all events of a job into `job`. Calls `onChange(link)`, with `open` or `lost`, whenever there is news.
 * Throws Refusal if the gateway says that there is nothing to follow, and AbortError by the signal.
 */
export async function follow(jobId, job, signal, onChange) {
  let pauseMs = FIRST_PAUSE_MS;
  while (!job.end) {
    try {
      const onOpen = () => onChange('open');
      for await (const event of events(jobId, job.last, signal, onOpen)) {
        if (event.name === 'error') { // the gateway's last word: it may go better in a moment
          beginAnewIfRewritten(job, JSON.parse(event.data).error);
          break;
        }
        fold(job, event);
        onChange('open');
        if (job.end) return;
        pauseMs = FIRST_PAUSE_MS;
      }
    } catch (error) {
      if (signal.aborted || error.isFinal) throw error;
      beginAnewIfRewritten(job, error);
      onChange('lost');
    }
    if (!job.end) {
      await pause(pauseMs, signal);
      pauseMs = Math.min(MOST_PAUSE_MS, 2 * pauseMs);
    }
  }
}

/** What was read of a job is no more on record, as after a failover: another worker wrote something else. */
function beginAnewIfRewritten(job, error) {
  if (error.code === 'stream_rewritten') Object.assign(job, unknownJob());
}

function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener('abort', () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });
}
