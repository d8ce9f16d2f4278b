// A small field under every "Predict": what the reader expects, shown again beside what the next cell says.
// It is kept in the metadata of its cell, so it is saved with the notebook and needs no kernel.
// What the code below it says of the answer is covered until it has run.

import {cover} from './cover.js';
import {made} from './player.js';

const MARK = '**Predict.**';
const KEY = 'dpbook_prediction';
const STYLE = `
.dpbook-prediction { display: flex; gap: 8px; align-items: center; padding: 4px 8px 8px;
  margin-left: var(--jp-cell-prompt-width, 64px); font: 14px var(--jp-ui-font-family, system-ui, sans-serif);
  color: var(--jp-ui-font-color1, #1b2430) }
.dpbook-prediction input { flex: 1 1 200px; max-width: 420px; font: inherit; padding: 3px 8px; border-radius: 4px;
  color: inherit; background: var(--jp-layout-color0, #fff); border: 1px solid var(--jp-border-color1, #a8b0bc) }
.dpbook-predicted { margin-left: var(--jp-cell-prompt-width, 64px); padding: 4px 8px;
  font: 14px var(--jp-ui-font-family, system-ui, sans-serif); color: var(--jp-ui-font-color1, #1b2430) }
.dpbook-predicted b { font-weight: 600 }
.dpbook-cover { font: inherit; padding: 0 6px; border-radius: 4px; cursor: pointer; color: var(--jp-ui-font-color2, #556070);
  background: var(--jp-layout-color2, #f1f4f8); border: 1px dashed var(--jp-border-color1, #a8b0bc) }`;

export function install(tracker, Widget, codemirror) {
  document.head.append(made('style', {textContent: STYLE}));
  const known = new WeakSet();

  function attend(panel) {
    const look = () => panel.content.widgets.forEach(cell => {
      if (known.has(cell) || cell.model.type !== 'markdown' || !cell.model.sharedModel.getSource().includes(MARK)) return;
      known.add(cell);
      cell.ready.then(() => { if (!cell.isDisposed) field(panel.content, cell, Widget, codemirror); });
    });
    panel.content.model.cells.changed.connect(look);
    look();
  }

  const follow = panel => panel.context.ready.then(() => panel.revealed).then(() => { if (!panel.isDisposed) attend(panel); });
  tracker.forEach(follow);
  tracker.widgetAdded.connect((_, panel) => { follow(panel); });
}

function field(notebook, cell, Widget, codemirror) {
  const stored = () => String(cell.model.getMetadata(KEY) ?? '');
  const hint = 'kept with the notebook; then run the next cell';
  const input = made('input', {type: 'text', value: stored(), maxLength: 200, placeholder: hint});
  const form = made('label', {className: 'dpbook-prediction'}, 'Your prediction', input);
  input.dataset.lmSuppressShortcuts = 'true';
  for (const event of ['dblclick', 'keydown']) form.addEventListener(event, happened => happened.stopPropagation());
  cell.layout.addWidget(new Widget({node: form}));

  const beside = new Widget({node: made('div', {className: 'dpbook-predicted'})});
  const watched = new WeakSet();

  // The cells of code between this question and the next text.
  function answers() {
    const after = notebook.widgets.slice(notebook.widgets.indexOf(cell) + 1);
    const end = after.findIndex(one => one.model.type === 'markdown');
    return (end < 0 ? after : after.slice(0, end)).filter(one => one.model.type === 'code');
  }

  // Beside the first answer that says something.
  function tell() {
    if (beside.isDisposed) return;
    const guess = input.value.trim(), answer = answers().find(one => one.model.outputs.length > 0);
    if (beside.parent && beside.parent !== answer) beside.parent = null;
    if (!guess || !answer || !answer.layout) return beside.hide();
    beside.node.replaceChildren('You predicted: ', made('b', {textContent: guess}));
    if (!beside.parent) {
      const place = answer.layout.widgets.findIndex(one => one.hasClass('jp-Cell-outputWrapper'));
      answer.layout.insertWidget(place < 0 ? answer.layout.widgets.length : place, beside);
    }
    beside.show();
  }

  function follow() {
    for (const answer of answers()) {
      if (watched.has(answer)) continue;
      watched.add(answer);
      answer.model.outputs.changed.connect(tell);
      answer.ready.then(() => {
        if (answer.isDisposed) return;
        cover(answer, codemirror);
        tell();
      });
    }
    tell();
  }

  input.addEventListener('input', () => {
    const guess = input.value.trim();
    if (guess) cell.model.setMetadata(KEY, guess);
    else cell.model.deleteMetadata(KEY);
    tell();
  });
  // Enter goes on to the first answer, which Shift+Enter then runs.
  input.addEventListener('keydown', happened => {
    const [answer] = answers();
    if (happened.key !== 'Enter' || happened.isComposing || !answer) return;
    happened.preventDefault();
    notebook.mode = 'command';
    notebook.activeCellIndex = notebook.widgets.indexOf(answer);
    notebook.node.focus();
  });
  cell.model.metadataChanged.connect(() => { // in another view of the notebook
    if (stored() === input.value.trim()) return;
    input.value = stored();
    tell();
  });
  const {cells} = notebook.model;
  cells.changed.connect(follow);
  cell.disposed.connect(() => {
    cells.changed.disconnect(follow);
    beside.dispose();
  });
  follow();
}
