// Few words for what the page is made of.

export const byId = (id) => document.getElementById(id);

/** An element with properties and children. */
export function el(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

/** Set a text only if it is another one, so that selections and screen readers are left in peace. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Show or hide. */
export function show(node, isShown) {
  if (node.hidden === isShown) node.hidden = !isShown;
}

/**
 * Let `parent` have one child for each item, in their order. A child stays the same element as long as its
 * item has the same key, so that the focus stays as well.
 */
export function list(parent, items, keyOf, make, update) {
  const before = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  items.forEach((item, place) => {
    const itemKey = String(keyOf(item));
    let child = before.get(itemKey);
    if (!child) {
      child = make(item);
      child.dataset.key = itemKey;
    }
    before.delete(itemKey);
    update(child, item);
    if (parent.children[place] !== child) parent.insertBefore(child, parent.children[place] ?? null);
  });
  for (const child of before.values()) child.remove();
}
