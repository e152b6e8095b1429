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

/** A line in the place of an empty list. */
export function emptyLine(parent, tag, num, text, numColumns) {
  if (num || parent.firstChild) return;
  const inside = numColumns ? el('td', {colSpan: numColumns}, text) : text;
  const line = el(tag, {className: 'none'}, inside);
  line.dataset.key = '';
  parent.append(line);
}

/** A button that does something, once at a time. */
export function button(text, act, className = 'plain') {
  const made = el('button', {type: 'button', className}, text);
  made.addEventListener('click', async () => {
    made.disabled = true;
    await act();
    made.disabled = false;
  });
  return made;
}

/** A field with its name. */
export const field = (name, input) => el('label', {className: 'field'}, el('span', {}, name), input);

/** A table without rows, which a narrow window scrolls. Returns [box, body]. */
export function table(name, ...columns) {
  const heads = columns.map((column) => el('th', {scope: 'col'}, column));
  const body = el('tbody');
  const made = el('table', {ariaLabel: name}, el('thead', {}, el('tr', {}, ...heads)), body);
  return [el('div', {className: 'scroll', tabIndex: 0, role: 'region', ariaLabel: name}, made), body];
}

/** Facts by their names; those without a value are left out. */
export function facts(pairs) {
  const told = pairs.filter(([, value]) => value !== null && value !== undefined && value !== '');
  return el('dl', {className: 'facts'}, ...told.flatMap(([name, value]) => [el('dt', {}, name), el('dd', {}, value)]));
}
