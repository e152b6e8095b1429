// A question before what cannot be taken back.
import {el} from './dom.mjs';

/** Whether the answer is yes. yes: what the button says that does it. */
export function isSure(text, yes) {
  return new Promise((resolve) => {
    const no = el('button', {type: 'button', className: 'plain'}, 'No');
    const go = el('button', {type: 'button', className: 'go'}, yes);
    const dialog = el('dialog', {className: 'question', ariaLabel: text},
      el('p', {}, text), el('div', {className: 'row end'}, no, go));
    const end = (isYes) => {
      dialog.close();
      dialog.remove();
      resolve(isYes);
    };
    no.addEventListener('click', () => end(false));
    go.addEventListener('click', () => end(true));
    dialog.addEventListener('cancel', () => end(false)); // by Escape
    document.body.append(dialog);
    dialog.showModal();
    no.focus();
  });
}
