// A player: steps through the frames of a film (dpbook/figures/card/film.py).
// A film may come from anyone, so its frames are only ever shown as images, where no script runs, and its words as text.

const STYLE = `
.dpbook-player { display: inline-block; position: relative; max-width: 100%; font: 14px var(--jp-ui-font-family, system-ui, sans-serif) }
.dpbook-player .picture { overflow-x: auto }
.dpbook-player img { display: block; max-width: max(100%, 640px) }
.dpbook-player .row { display: flex; flex-wrap: wrap; gap: 6px; align-items: center; margin: 6px 0 }
.dpbook-player button { font: inherit; min-width: 4.4em; padding: 3px 10px; border-radius: 4px; cursor: pointer;
  color: var(--jp-ui-font-color1, #1b2430); background: var(--jp-layout-color2, #f1f4f8);
  border: 1px solid var(--jp-border-color1, #a8b0bc) }
.dpbook-player :focus-visible, .dpbook-player:focus-visible { outline: 2px solid #0a6ebd; outline-offset: 2px }
.dpbook-player input { flex: 1 1 160px; min-width: 120px; max-width: 420px }
.dpbook-player .value { min-width: 4em; font-variant-numeric: tabular-nums; color: var(--jp-ui-font-color1, inherit) }
.dpbook-player .status { position: absolute; bottom: 0; margin: 0; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%) }`;

// The frames of a film, each with its words and, when it is asked for, its SVG.
function framesOf(text) {
  const film = new DOMParser().parseFromString(text, 'image/svg+xml').documentElement;
  const parts = new Map([...film.querySelectorAll('defs > g')].map(part => [part.id, part]));
  const groups = [...film.querySelectorAll('g.frame, g.way')];
  const shell = film.cloneNode(true);
  shell.querySelectorAll('defs, g.frame, g.way, #clock').forEach(part => part.remove());

  function still(group) {
    const made = group.cloneNode(true);
    made.querySelectorAll('use').forEach(use => {
      const part = parts.get((use.getAttribute('href') ?? '').slice(1));
      use.replaceWith(...(part ? part.cloneNode(true).childNodes : []));
    });
    return made;
  }

  function svg(group, way) {
    const made = shell.cloneNode(true);
    if (way) { // what is under way is seen first: its own clock begins when the image is shown
      const moving = still(way), shown = moving.querySelector(':scope > set');
      shown.setAttribute('begin', '0s');
      made.append(moving);
    }
    const frame = still(group), clock = frame.querySelector(':scope > set');
    if (clock && way) {
      const seconds = way.querySelector(':scope > set').getAttribute('dur');
      frame.setAttribute('visibility', 'hidden');
      for (const [name, value] of [['to', 'visible'], ['begin', seconds], ['dur', 'indefinite']]) clock.setAttribute(name, value);
    } else {
      frame.removeAttribute('visibility');
      if (clock) clock.remove();
    }
    made.append(frame);
    return new XMLSerializer().serializeToString(made);
  }

  return groups.filter(group => group.matches('.frame')).map(group => {
    const before = group.previousElementSibling;
    const way = before && before.matches('.way:has(> set)') ? before : null;
    const words = ['title', 'desc'].map(name => group.querySelector(`:scope > ${name}`)?.textContent ?? '');
    return {alt: words[0], description: words[1], svg: moving => svg(group, moving ? way : null)};
  });
}

export function made(tag, properties, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

// Put a player into `host`. Returns a function that stops it.
export function mount(host, {svg, step, pace, at}) {
  const frames = framesOf(svg), last = frames.length - 1;
  if (last < 0) throw new Error('there is no picture in this film');
  const button = name => made('button', {type: 'button', textContent: name});
  const [first, previous, play, next, end] = ['First', 'Previous', 'Play', 'Next', 'Last'].map(button);
  const range = made('input', {type: 'range', min: 0, max: last, step: 1, value: at});
  const number = made('span', {className: 'value'});
  const status = made('p', {className: 'status'});
  const picture = made('div', {className: 'picture'});
  const name = String(step).replace(/^./, letter => letter.toUpperCase());
  range.setAttribute('aria-label', name);
  status.setAttribute('aria-live', 'polite');
  first.title = `Go to the state before the first ${step}`;
  previous.title = `Go back by one ${step}`;
  next.title = `Carry out one ${step}`;
  end.title = `Go to the state after the last ${step}`;
  play.title = `Play one ${step} after another; press again to pause`;
  const row = made('div', {className: 'row'}, first, previous, play, next, end, range, number);
  const root = made('div', {className: 'dpbook-player', tabIndex: 0}, made('style', {textContent: STYLE}), picture, row, status);
  root.setAttribute('role', 'group');
  root.setAttribute('aria-label', `Player, ${name.toLowerCase()} by ${name.toLowerCase()}: ${frames[0].alt.split('. ')[0]}`);
  // JupyterLab's own keys (b inserts a cell) are for what does not say this.
  for (const one of [root, ...root.querySelectorAll('button, input')]) one.dataset.lmSuppressShortcuts = 'true';

  let now = -1, timer = 0, prepared = new Map();

  // An image of frame `to`. What moves in it begins to move when it is first seen.
  function imageOf(to, moving) {
    const {alt, description, svg} = frames[to];
    const calm = matchMedia('(prefers-reduced-motion: reduce)').matches;
    const image = made('img', {alt, src: `data:image/svg+xml,${encodeURIComponent(svg(moving && !calm))}`});
    if (description) image.setAttribute('aria-description', description);
    return image;
  }

  // Both neighbours of the frame that is seen are made ready, so that a step takes no time.
  function prepare() {
    prepared = new Map([[now + 1, true], [now - 1, false]].filter(([to]) => frames[to]).map(([to, moving]) => [to, imageOf(to, moving)]));
  }

  async function draw(to) {
    const image = prepared.get(to) ?? imageOf(to, false);
    if (!image.complete) await image.decode().catch(() => {});
    if (to !== now) return; // a later step was quicker
    picture.replaceChildren(image);
    setTimeout(() => { if (to === now) prepare(); });
  }

  function show(wanted) {
    const to = Math.max(0, Math.min(last, wanted));
    if (to === now) return;
    now = to;
    draw(to);
    range.value = to;
    range.setAttribute('aria-valuetext', `${to} of ${last}`);
    number.textContent = `${to} / ${last}`;
    status.textContent = frames[to].alt;
    root.dataset.at = to;
  }

  function stop() {
    clearInterval(timer);
    timer = 0;
    play.textContent = 'Play';
  }

  function go(to) {
    stop(); // whoever steps by hand wants no one else to step
    show(to);
  }

  function toggle() {
    if (timer) return stop();
    if (now === last) show(0);
    play.textContent = 'Pause';
    timer = setInterval(() => {
      show(now + 1);
      if (now === last) stop();
    }, 1000 * pace);
  }

  first.onclick = () => go(0);
  previous.onclick = () => go(now - 1);
  next.onclick = () => go(now + 1);
  end.onclick = () => go(last);
  play.onclick = toggle;
  range.oninput = () => go(Number(range.value));
  root.onkeydown = event => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const to = {ArrowRight: now + 1, ArrowUp: now + 1, ArrowLeft: now - 1, ArrowDown: now - 1, Home: 0, End: last}[event.key];
    if (to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    go(to);
  };

  host.replaceChildren(root);
  show(Math.round(at) || 0);
  return stop;
}

// Make players of the moving pictures of this page, where no extension has.
function mountAll() {
  for (const host of document.querySelectorAll('.dpbook-film')) {
    const code = host.querySelector('img').src.split(',')[1];
    const svg = new TextDecoder().decode(Uint8Array.from(atob(code), letter => letter.charCodeAt(0)));
    host.className = '';
    mount(host, {svg, step: host.dataset.step, pace: host.dataset.pace, at: host.dataset.at});
  }
}
