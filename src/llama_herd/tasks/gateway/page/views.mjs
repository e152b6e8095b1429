// The views of the page: which one the address names, and whose keys may see it.

const ROLES = ['subscriber', 'producer', 'operator'];
/** By view: the least role that may see it. */
const NEEDS = {
  play: 'subscriber', overview: 'subscriber', job: 'subscriber', batches: 'producer', jobs: 'operator', dead: 'operator',
};

/** Whether a key of this role may do what another one may. */
export const isAtLeast = (role, needed) => ROLES.indexOf(role) >= ROLES.indexOf(needed);

/** Whether a key of this role may see a view. */
export const may = (role, view) => isAtLeast(role, NEEDS[view]);

/** What an address names: {view, id, query}. `#job=ID`: the talk with this job; `#jobs/ID`: all about it. */
export function placeOf(hash) {
  const [, name, id, query] = /^#(\w+)(?:\/([^?]+))?(?:\?(.*))?$/.exec(hash) ?? [];
  const view = name === 'jobs' && id ? 'job' : name;
  if (!(view in NEEDS) || hash.startsWith('#job=')) return {view: 'play', id: '', query: new URLSearchParams()};
  return {view, id: decodeURIComponent(id ?? ''), query: new URLSearchParams(query)};
}

/** The address of a job's own view. */
export const jobPlace = (id) => `#jobs/${encodeURIComponent(id)}`;
