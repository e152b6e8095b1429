// As much of a browser's document as the page's views need, for tests without a browser.

class Element {
  #nodes = []; // elements and texts
  #listeners = new Map();
  #classes = new Set();

  constructor(tag) {
    Object.assign(this, {tag, dataset: {}, style: {}, hidden: false, parent: null, value: '', checked: false});
    this.classList = {
      toggle: (name, isOn) => (isOn ? this.#classes.add(name) : this.#classes.delete(name)),
      contains: (name) => this.#classes.has(name),
    };
  }

  get children() { return this.#nodes.filter((node) => node instanceof Element); }

  get firstChild() { return this.#nodes[0] ?? null; }

  get tBodies() { return this.children.filter((child) => child.tag === 'tbody'); }

  get className() { return [...this.#classes].join(' '); }

  set className(names) { this.#classes = new Set(names.split(' ').filter(Boolean)); }

  get textContent() {
    return this.#nodes.map((node) => (node instanceof Element ? node.textContent : node)).join('');
  }

  set textContent(text) { this.#nodes = text === '' ? [] : [String(text)]; }

  /** Those of a form, by their names. */
  get elements() { return Object.fromEntries(this.all().filter((one) => one.name).map((one) => [one.name, one])); }

  append(...nodes) { for (const node of nodes) this.insertBefore(node, null); }

  replaceChildren(...nodes) {
    this.#nodes = [];
    this.append(...nodes);
  }

  insertBefore(node, next) {
    if (node instanceof Element) {
      node.remove();
      node.parent = this;
    }
    this.#nodes.splice(next ? this.#nodes.indexOf(next) : this.#nodes.length, 0, node instanceof Element ? node : String(node));
  }

  remove() {
    if (this.parent) this.parent.#nodes = this.parent.#nodes.filter((node) => node !== this);
    this.parent = null;
  }

  setAttribute(name, value) { this[name] = value; }

  addEventListener(name, act) { this.#listeners.set(name, [...(this.#listeners.get(name) ?? []), act]); }

  dispatch(name) {
    for (const act of this.#listeners.get(name) ?? []) act({target: this, preventDefault() {}});
  }

  /** A link with `download` saves what it leads to. */
  click() {
    if (this.tag === 'a') saved.push({name: this.download, href: this.href});
    else this.dispatch('click');
  }

  /** Tick a box, or take the tick away. */
  tick() {
    this.checked = !this.checked;
    this.dispatch('change');
  }

  showModal() { this.open = true; }

  close() { this.open = false; }

  focus() {}

  /** All elements within. */
  all() { return this.children.flatMap((child) => [child, ...child.all()]); }

  querySelector(selector) { return this.querySelectorAll(selector)[0] ?? null; }

  querySelectorAll(selector) {
    const isIt = selector.startsWith('.')
      ? (one) => one.classList.contains(selector.slice(1))
      : (one) => one.tag === selector;
    return this.all().filter(isIt);
  }
}

const byId = new Map();

/** What links were asked to save. */
export const saved = [];

export const document = {
  hidden: false,
  body: new Element('body'),
  addEventListener() {},
  createElement: (tag) => new Element(tag),
  getElementById(id) {
    if (!byId.has(id)) byId.set(id, new Element('div'));
    return byId.get(id);
  },
};

/** What `look` finds, once it finds something. */
export async function once(look) {
  for (;;) {
    const found = look();
    if (found) return found;
    await new Promise((go) => setTimeout(go, 10));
  }
}

/** The button of this name within an element, once there is one that can be pressed. */
export const pressable = (inside, name) => once(() => inside.all().find(
  (one) => one.tag === 'button' && one.textContent === name && !one.hidden && !one.disabled));

/** Press a button, and answer the question that it asks; what was asked. */
export async function press(inside, name, answer) {
  (await pressable(inside, name)).click();
  const dialog = await once(() => document.body.querySelector('dialog'));
  const asked = dialog.querySelector('p').textContent;
  (await pressable(dialog, answer)).click();
  return asked;
}
