// A figure with knobs (dpbook/figures/card/viewer.py). The kernel draws; `ask` reaches it, `keep` stores what is shown.
// What is shown comes from this notebook's kernel or, stored, from anyone: it becomes an image, never markup of the page.

import {made} from './player.js';

const STYLE = `
.dpbook-explorer { position: relative; max-width: 100%; font: 14px var(--jp-ui-font-family, system-ui, sans-serif) }
.dpbook-explorer .picture { overflow-x: auto }
.dpbook-explorer img { display: block; max-width: max(100%, 640px) }
.dpbook-explorer .knobs { display: flex; flex-wrap: wrap; gap: 2px 24px; margin: 4px 0 }
.dpbook-explorer label { display: flex; gap: 8px; align-items: center; flex: 1 1 380px; max-width: 540px;
  color: var(--jp-ui-font-color1, #1b2430) }
.dpbook-explorer label span { flex: 0 0 11em }
.dpbook-explorer input { flex: 1 1 120px; min-width: 100px }
.dpbook-explorer label .value { flex: 0 0 9em; font-variant-numeric: tabular-nums }
.dpbook-explorer .message { min-height: 1.5em; margin: 0; color: var(--jp-ui-font-color2, #556070) }
.dpbook-explorer .status { position: absolute; bottom: 0; margin: 0; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%) }
.dpbook-explorer :focus-visible { outline: 2px solid #0a6ebd; outline-offset: 2px }`;

// The one image in `markup`, or null. Parsed apart from the page, nothing in it is loaded or run.
function imageIn(markup) {
  const found = new DOMParser().parseFromString(markup, 'text/html').querySelector('img');
  if (!found || !/^data:image\/svg\+xml;base64,/.test(found.getAttribute('src'))) return null;
  const image = made('img', {alt: found.alt, src: found.getAttribute('src')});
  if (Number(found.getAttribute('width'))) image.width = found.getAttribute('width');
  return image;
}

// Put an explorer into `host`: `figure` is the markup of its picture. `foresee` gives the picture of a position at once,
// if a film has it; the answer of `ask`, which is then asked when the knobs rest, takes its place.
export function mount(host, {name, knobs, figure}, {ask, keep, foresee = async () => null}) {
  const picture = made('div', {className: 'picture'});
  const status = made('p', {className: 'status'});
  status.setAttribute('aria-live', 'polite');
  const message = made('p', {className: 'message'});
  message.setAttribute('role', 'status');
  const ranges = knobs.map(knob => {
    const range = made('input', {type: 'range', min: 0, max: knob.values.length - 1, step: 1, value: knob.at});
    range.dataset.lmSuppressShortcuts = 'true';
    range.setAttribute('aria-label', knob.label);
    return range;
  });
  const values = knobs.map(() => made('span', {className: 'value'}));
  const rows = knobs.map((knob, i) => made('label', {}, made('span', {textContent: knob.label}), ranges[i], values[i]));
  const root = made('div', {className: 'dpbook-explorer'}, made('style', {textContent: STYLE}),
    made('div', {className: 'knobs'}, ...rows), message, picture, status);
  root.setAttribute('role', 'group');

  const places = () => ranges.map(range => Number(range.value));
  function tell() {
    knobs.forEach((knob, i) => {
      const value = knob.values[places()[i]];
      values[i].textContent = value;
      ranges[i].setAttribute('aria-valuetext', value);
    });
  }

  let drawn = null;
  function draw(markup) {
    const image = imageIn(markup);
    if (!image) return '';
    if (drawn?.src === image.src) return image.alt; // the film has shown it
    drawn = image;
    image.decode().catch(() => {}).then(() => { if (drawn === image) picture.replaceChildren(image); }); // else there is a later one
    root.setAttribute('aria-label', image.alt);
    return image.alt;
  }

  const questionAt = at => ({name, chosen: Object.fromEntries(knobs.map((knob, i) => [knob.name, knob.values[at[i]]]))});
  let answered = '';
  async function preview(at) { // whether a film has the picture
    const found = await foresee(questionAt(at)).catch(() => null);
    if (found?.figure && String(at) === String(places()) && String(at) !== answered) draw(found.figure);
    return Boolean(found?.figure);
  }

  let asking = false, wanted = false, resting = 0;
  async function turn() {
    tell();
    clearTimeout(later);
    root.setAttribute('aria-busy', 'true'); // until what it shows is stored
    const foreseen = await preview(places());
    clearTimeout(resting);
    if (foreseen) resting = setTimeout(answer, 200);
    else answer();
  }

  async function answer() { // one question at a time, and the latest position counts
    wanted = true;
    if (asking) return;
    asking = true;
    while (wanted) {
      wanted = false;
      const at = places(), patience = setTimeout(() => { message.textContent = 'The kernel is busy…'; }, 1500);
      try {
        const answer = await ask(questionAt(at));
        message.textContent = answer.error ?? '';
        if (answer.figure) {
          answered = String(at);
          if (!wanted) status.textContent = draw(answer.figure); // else a film may show the next position already
          latest = {at, figure: answer.figure};
        }
      } catch (error) {
        message.textContent = error.message;
        wanted = false;
        ranges.forEach((range, i) => { range.value = latest.at[i]; }); // back to what was drawn last
        draw(latest.figure);
        tell();
      }
      clearTimeout(patience);
    }
    asking = false;
    store();
  }

  let latest = {at: places(), figure}, kept = figure, later = 0;
  function store() { // when the knobs have come to rest
    clearTimeout(later);
    later = setTimeout(() => {
      if (asking) return; // turned again: it is stored after that
      if (latest.figure !== kept) keep(latest);
      kept = latest.figure;
      root.setAttribute('aria-busy', 'false');
    }, 400);
  }

  ranges.forEach(range => { range.oninput = turn; });
  // The notebook's own keys end here.
  root.onkeydown = event => { if (event.key.startsWith('Arrow') || ['Home', 'End'].includes(event.key)) event.stopPropagation(); };
  tell();
  draw(figure);
  host.replaceChildren(root);
  return () => { clearTimeout(later); clearTimeout(resting); };
}
