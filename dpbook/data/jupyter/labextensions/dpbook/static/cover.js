// What a cell says of the answer to a prediction is covered until the cell has run, or the reader asks to see it: its
// asserts, and strings of five words or more that begin as a sentence does, such as the title of a figure.

import {made} from './player.js';

const ASSERT = /^([ \t]*)assert\b.*(?:\n\1(?:[ \t]+\S|[)\]}]).*)*/gm;

const TITLE = /(?<!["\w])f?"[\p{Lu}\d][^"\n]*?(?: [^" \n]+){4,}"/gu;

// Begin and end of each assert in `code`, without its indentation. Its further lines are indented or close a bracket.
export function asserts(code) {
  return [...code.matchAll(ASSERT)].map(({0: text, 1: indent, index}) => [index + indent.length, index + text.length]);
}

// What is covered in `code`, in order: begin, end, and the words in its place.
function covered(code) {
  const told = asserts(code), inside = at => told.some(([from, to]) => from <= at && at < to);
  const titles = [...code.matchAll(TITLE)].filter(({index}) => !inside(index));
  return [...told.map(([from, to]) => [from, to, 'assert …']), ...titles.map(({0: text, index}) => [index, index + text.length, '"…"'])]
    .sort(([a], [b]) => a - b);
}

// Cover what `cell` says of the answer. `state` and `view` are CodeMirror's modules.
export function cover(cell, {state: {Compartment, StateField}, view: {Decoration, EditorView, WidgetType}}) {
  const {editor, model} = cell;
  if (model.executionCount !== null || !covered(model.sharedModel.getSource()).length) return;
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
    constructor(words) {
      super();
      this.words = words;
    }
    toDOM() {
      return made('button', {type: 'button', className: 'dpbook-cover', textContent: this.words, onclick: uncover,
        title: 'This says the answer: it is shown when the cell has run. Press to see it now.'});
    }
  }

  const over = ([from, to, words]) => Decoration.replace({widget: new Cover(words)}).range(from, to);
  const field = StateField.define({
    create: ({doc}) => Decoration.set(covered(doc.toString()).map(over)),
    update: (covers, change) => covers.map(change.changes), // what a reader writes stays visible
    provide: own => [EditorView.decorations.from(own), EditorView.atomicRanges.of(view => view.state.field(own))],
  });
  editor.injectExtension(place.of(field));
  model.stateChanged.connect(look);
}
