// What JupyterLab loads: draws the outputs of dpbook, lets figures with knobs reach the kernel, adds predictions, and
// sets the notebooks of the book for reading.
// Written by hand in the form of a prebuilt extension; it is small, and nothing has to be built.
(() => {
  const here = document.currentScript.src;
  const modules = {}; // import() of a module that is loaded already still costs a turn of the event loop, and so a frame
  const load = name => modules[name] ??= import(new URL(name, here).href);
  const films = {};
  let shared, tracker = null;

  // A module that JupyterLab shares with its extensions.
  const module = async name => (await Object.values(shared[name])[0].get())();

  const PLAYER = 'application/vnd.dpbook.player+json', EXPLORER = 'application/vnd.dpbook.explorer+json';
  const STYLE = `
    .jp-RenderedHTMLCommon img[src^="data:image/"] { max-width: max(100%, 640px) !important }`;

  const FROM_THE_TOP = 'run from the top: select this cell, choose Run, Run All Above Selected Cell, then run the cell';

  // Ask the kernel of the notebook in which `host` is; one call at a time.
  function asker(host) {
    let comm = null, known = null;
    const dispose = () => { if (comm && !comm.isDisposed) comm.dispose(); };
    const ask = async question => {
      const panel = tracker && tracker.find(one => one.node.contains(host));
      if (!panel) throw new Error('Turn the knobs in the notebook itself: this is a view of what they show.');
      await panel.sessionContext.ready; // a page that has just been opened does not know its kernel yet
      const kernel = panel.sessionContext.session?.kernel;
      if (!kernel) throw new Error(`No kernel is running. Start one (Kernel, Change Kernel…) and ${FROM_THE_TOP}.`);
      return send(kernel, question);
    };
    const send = (kernel, question) => new Promise((resolve, reject) => {
      const again = `The kernel has not drawn this figure since it started. To turn the knobs, ${FROM_THE_TOP}.`;
      const end = (finish, value) => {
        kernel.statusChanged.disconnect(look);
        kernel.disposed.disconnect(leave);
        finish(value);
      };
      const leave = () => end(reject, new Error(`The kernel has ended. Start it again and ${FROM_THE_TOP}.`));
      const look = (_, status) => { if (['restarting', 'autorestarting', 'dead', 'terminating'].includes(status)) leave(); };
      kernel.statusChanged.connect(look);
      kernel.disposed.connect(leave);
      if (!comm || comm.isDisposed || known !== kernel) {
        comm = kernel.createComm('dpbook.explorer');
        known = kernel;
        comm.open({});
      }
      comm.onClose = () => { dispose(); end(reject, new Error(again)); };
      comm.onMsg = message => {
        const answer = message.content.data;
        if (answer.gone) end(reject, new Error(again));
        else end(resolve, answer);
      };
      const unanswered = () => end(reject, new Error('The kernel did not answer: turn the knob once more.'));
      comm.send(question).done.then(unanswered, unanswered); // it was interrupted, or a cell before it failed
    });
    return {ask, dispose};
  }

  // What a figure shows without its kernel: the book's own have films, which come with the extension.
  async function filmOf(name) {
    if (!/^[0-9a-f]{16}$/.test(name)) return null;
    const {open} = await load('film.js');
    return films[name] ??= fetch(new URL(`films/${name}.json.gz`, here)).then(async file => file.ok ? open(await file.arrayBuffer()) : null);
  }
  async function filmed(name, knobs, {chosen}) {
    const {show} = await load('film.js'), film = await filmOf(name);
    return film && show(film, knobs, chosen);
  }

  async function renderers() {
    const {Widget} = await module('@lumino/widgets');
    document.head.append(Object.assign(document.createElement('style'), {textContent: STYLE}));

    class Player extends Widget {
      async renderModel(model) {
        const {mount} = await load('player.js');
        this.end?.();
        this.end = mount(this.node, model.data[PLAYER]);
      }
      dispose() {
        this.end?.();
        super.dispose();
      }
    }

    class Explorer extends Widget {
      async renderModel(model) {
        if (this.keeping) return; // it shows already what it has just stored
        const {mount} = await load('explorer.js');
        this.end?.();
        const {ask, dispose} = asker(this.node), {name, knobs} = model.data[EXPLORER];
        const foresee = question => filmed(name, knobs, question);
        filmOf(name).catch(() => {}); // before the first turn
        const askOrPlay = question => ask(question).catch(async error => {
          const figure = await foresee(question).catch(() => null);
          if (!figure) throw error;
          return figure;
        });
        const keep = ({at, figure}) => {
          const knobs = model.data[EXPLORER].knobs.map((knob, i) => ({...knob, at: at[i]}));
          this.keeping = true;
          model.setData({data: {...model.data, [EXPLORER]: {...model.data[EXPLORER], knobs, figure}}});
          this.keeping = false;
        };
        // The picture as markup: the one that was stored with the knobs, or the one beside them.
        const figure = model.data[EXPLORER].figure ?? String(model.data['text/html']);
        const stop = mount(this.node, {...model.data[EXPLORER], figure}, {ask: askOrPlay, keep, foresee});
        this.end = () => { stop(); dispose(); };
      }
      dispose() {
        this.end?.();
        super.dispose();
      }
    }

    const made = {[PLAYER]: Player, [EXPLORER]: Explorer};
    return {
      id: 'dpbook:outputs', dataType: 'json', rank: 0,
      rendererFactory: {safe: true, mimeTypes: Object.keys(made), createRenderer: ({mimeType}) => new made[mimeType]()},
    };
  }

  async function notebooks() {
    const {INotebookTracker, NotebookActions} = await module('@jupyterlab/notebook');
    const {Widget} = await module('@lumino/widgets');
    const codemirror = {state: await module('@codemirror/state'), view: await module('@codemirror/view')};
    return {
      id: 'dpbook:notebooks', autoStart: true, requires: [INotebookTracker],
      activate: async (app, notebookTracker) => {
        tracker = notebookTracker;
        (await load('prediction.js')).install(tracker, Widget, codemirror);
        (await load('reading.js')).install(app, tracker, Widget, NotebookActions.executed);
      },
    };
  }

  const exposed = {'./mimeExtension': renderers, './extension': notebooks};
  (window._JUPYTERLAB ??= {}).dpbook = {
    init(scope) { shared = scope; },
    async get(name) {
      const made = await exposed[name]();
      return () => ({__esModule: true, default: made});
    },
  };
})();
