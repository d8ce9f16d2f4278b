// The room in which a notebook of the book is read: the width of its column, and one line while its kernel is new.
// Notebooks that are not the book's stay as JupyterLab shows them.

import {made} from './player.js';

const NARROW = 1100; // pixels of a window that has no room for the file browser beside the page
const STYLE = `
.dpbook-reading { --jp-content-font-size1: 16px; --jp-content-line-height: 1.6 }
.dpbook-reading .jp-Cell { max-width: calc(1030px + var(--jp-cell-prompt-width)); margin-inline: auto }
.dpbook-reading .jp-RenderedMarkdown > :is(p, ul, ol, blockquote, details, h1, h2, h3, h4) { max-width: 64ch }
.dpbook-reading .jp-RenderedMarkdown table { font-size: 14px }
.dpbook-reading .jp-OutputArea-output pre { word-break: normal; overflow-wrap: anywhere }
.dpbook-reading :is(.jp-RenderedHTMLCommon, .dpbook-player, .dpbook-explorer) img[src^="data:image/"] {
  zoom: 1.1; max-width: 100% !important; height: auto }
.dpbook-reading .dpbook-player { display: block }
.dpbook-reading :is(.dpbook-player, .dpbook-explorer) .picture { overflow: hidden }
.dpbook-new-kernel { display: flex; align-items: center; gap: 8px; min-height: 32px; padding: 0 12px;
  font: 14px var(--jp-ui-font-family, system-ui, sans-serif); color: var(--jp-ui-font-color1, #1b2430);
  background: var(--jp-layout-color2, #f1f4f8); border-bottom: 1px solid var(--jp-border-color1, #a8b0bc) }
.dpbook-new-kernel button { font: inherit; padding: 1px 8px; border-radius: 4px; cursor: pointer; color: inherit;
  background: var(--jp-layout-color0, #fff); border: 1px solid var(--jp-border-color1, #a8b0bc) }`;

export function install(app, tracker, Widget, executed) {
  document.head.append(made('style', {textContent: STYLE}));
  let first = true;
  const enter = panel => panel.context.ready.then(() => {
    if (panel.isDisposed || !panel.content.model.getMetadata('dpbook')) return;
    panel.content.addClass('dpbook-reading');
    announce(panel, app, Widget, executed);
    if (first && window.innerWidth < NARROW) app.restored.then(() => app.shell.collapseLeft?.());
    first = false;
  });
  tracker.forEach(enter);
  tracker.widgetAdded.connect((_, panel) => { enter(panel); });
}

// Outputs are stored, so a notebook looks run when its kernel is new. A line says so until the first cell has run.
function announce(panel, app, Widget, executed) {
  const above = made('button', {type: 'button', textContent: 'Run All Above Selected Cell'});
  above.onclick = () => {
    const notebook = panel.content, begins = notebook.widgets.findIndex(one => one.model.type === 'code');
    if (notebook.activeCellIndex > begins) return app.commands.execute('notebook:run-all-above');
    notebook.activeCellIndex = begins; // nothing is above: run the first code
    return app.commands.execute('notebook:run-cell-and-select-next');
  };
  const node = made('div', {className: 'dpbook-new-kernel'}, 'This kernel has run nothing yet. Run from the top:', above);
  node.setAttribute('role', 'status');
  const line = new Widget({node}), context = panel.sessionContext;
  line.hide();
  panel.contentHeader.addWidget(line);

  async function look() {
    const kernel = context.session?.kernel;
    if (!kernel) return;
    const reply = await kernel.requestExecute({code: '', silent: true, store_history: false}).done.catch(() => null);
    if (reply && !line.isDisposed && kernel === context.session?.kernel) line.setHidden(reply.content.execution_count > 0);
  }

  const hide = (_, {notebook, cell, success}) => {
    const begins = notebook.widgets.find(one => one.model.type === 'code');
    if (notebook === panel.content && cell === begins && success) line.hide();
  };
  executed.connect(hide);
  panel.disposed.connect(() => executed.disconnect(hide));
  context.kernelChanged.connect(look);
  context.statusChanged.connect((_, status) => { if (['restarting', 'autorestarting'].includes(status)) line.show(); });
  context.ready.then(look);
}
