// The asserts of a cell that answers a prediction are covered until the cell has run, or the reader asks to see them.

import {made} from './player.js';

const ASSERT = /^([ \t]*)assert\b.*(?:\n\1(?:[ \t]+\S|[)\]}]).*)*/gm;

// Begin and end of each assert in `code`, without its indentation. Its further lines are indented or close a bracket.
export function asserts(code) {
  return [...code.matchAll(ASSERT)].map(({0: text, 1: indent, index}) => [index + indent.length, index + text.length]);
}

// Cover the asserts of `cell`. `state` and `view` are CodeMirror's modules.
export function cover(cell, {state: {Compartment, StateField}, view: {Decoration, EditorView, WidgetType}}) {
  const {editor, model} = cell;
  if (model.executionCount !== null || !asserts(editor.model.sharedModel.getSource()).length) return;
  const place = new Compartment();

  function uncover() {
    model.stateChanged.disconnect(look);
    if (!cell.isDisposed) editor.editor.dispatch({effects: place.reconfigure([])});
  }

  function look() {
    const failed = model.outputs.toJSON().some(output => output.output_type === 'error');
    if (model.executionCount !== null && !failed) uncover();
  }

  class Cover extends WidgetType {
    toDOM() {
      return made('button', {type: 'button', className: 'dpbook-cover', textContent: 'assert …', onclick: uncover,
        title: 'This line says the answer: it is shown when the cell has run. Press to see it now.'});
    }
  }

  const covered = StateField.define({
    create: ({doc}) => Decoration.set(asserts(doc.toString()).map(([from, to]) => Decoration.replace({widget: new Cover()}).range(from, to))),
    update: (covers, change) => covers.map(change.changes), // what a reader writes stays visible
    provide: field => [EditorView.decorations.from(field), EditorView.atomicRanges.of(view => view.state.field(field))],
  });
  editor.injectExtension(place.of(covered));
  model.stateChanged.connect(look);
}
