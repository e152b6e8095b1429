// Server-sent events, read from a stream of text.

/** Takes text in parts of any size and gives the events that are whole: {id, name, data}. */
export class EventReader {
  #rest = '';
  #event = {};

  /** The events that this part completes. */
  push(text) {
    const lines = (this.#rest + text).split('\n');
    this.#rest = lines.pop();
    return lines.flatMap((line) => this.#take(line.endsWith('\r') ? line.slice(0, -1) : line));
  }

  #take(line) {
    if (line === '') {
      const {data, id = null, event = 'message'} = this.#event;
      this.#event = {};
      return data === undefined ? [] : [{id, name: event, data}];
    }
    const colon = line.indexOf(':');
    if (colon === 0) return []; // a comment
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '');
    const before = this.#event[name];
    this.#event[name] = name === 'data' && before !== undefined ? `${before}\n${value}` : value;
    return [];
  }
}
