// As much of a browser's document as the page's batches need, for tests without a browser.

class Element {
  constructor(tag) {
    Object.assign(this, {tag, children: [], dataset: {}, style: {}, className: '', textContent: '', hidden: false});
    this.listeners = {};
  }

  append(...children) {
    for (const child of children) {
      if (child instanceof Element) this.children.push(child);
      else this.textContent += child;
    }
  }

  insertBefore(child, next) {
    this.children.splice(next ? this.children.indexOf(next) : this.children.length, 0, child);
  }

  addEventListener(name, act) {
    this.listeners[name] = act;
  }

  /** A link with `download` saves what it leads to. */
  click() {
    if (this.tag === 'a') saved.push({name: this.download, href: this.href});
    else this.listeners.click();
  }

  querySelector(selector) {
    for (const child of this.children) {
      const isIt = selector.startsWith('.') ? child.className.split(' ').includes(selector.slice(1)) : child.tag === selector;
      const found = isIt ? child : child.querySelector(selector);
      if (found) return found;
    }
    return null;
  }
}

const byId = new Map();

/** What links were asked to save. */
export const saved = [];

export const document = {
  hidden: false,
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
