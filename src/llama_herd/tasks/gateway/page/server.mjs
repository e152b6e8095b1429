// Calls to the gateway that this page comes from.
import {EventReader} from './sse.mjs';

const KEY = 'herd-key';
/** A stream that brings not even a comment for so long is taken for dead. */
const SILENT_MS = 45_000;

/** An answer that is no success: `status`, and OpenAI's error object. */
export class Refusal extends Error {
  constructor(status, error, retryAfterS) {
    super(error.message ?? `the gateway says ${status}`);
    Object.assign(this, {status, code: error.code, param: error.param, retryAfterS});
  }

  /** Whether the same request will be refused in a moment, too. */
  get isFinal() { return this.status < 500 && this.status !== 429; }
}

export const key = {
  get: () => sessionStorage.getItem(KEY),
  keep: (value) => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

/** Send a request. Throws Refusal, and TypeError if the gateway is out of reach. */
export async function send(method, path, {body, headers = {}, signal} = {}) {
  const shown = key.get() ? {Authorization: `Bearer ${key.get()}`} : {};
  const answer = await fetch(path, {
    method,
    headers: {...headers, ...shown},
    body: body === undefined ? undefined : JSON.stringify(body),
    cache: 'no-store',
    signal,
  });
  if (answer.ok) return answer;
  const found = await answer.json().catch(() => ({}));
  throw new Refusal(answer.status, found.error ?? {}, Number(answer.headers.get('Retry-After')) || null);
}

export const ask = async (method, path, options) => (await send(method, path, options)).json();

/** The events of a job after the one with the id `last`, as they come; `onOpen` is called once they can. */
export async function* events(jobId, last, signal, onOpen) {
  const silence = new AbortController();
  const timer = {};
  const heard = () => {
    clearTimeout(timer.id);
    timer.id = setTimeout(() => silence.abort(), SILENT_MS);
  };
  let parts = null;
  heard();
  try {
    const answer = await send('GET', `v1/jobs/${jobId}/events`, {
      headers: {'Last-Event-ID': last},
      signal: AbortSignal.any([signal, silence.signal]),
    });
    onOpen();
    if (answer.status === 204) return;
    const reader = new EventReader();
    parts = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const {done, value} = await parts.read();
      if (done) return;
      heard();
      yield* reader.push(value);
    }
  } finally {
    clearTimeout(timer.id);
    parts?.cancel().catch(() => {});
  }
}
