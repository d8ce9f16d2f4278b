// What moves on the pages: players, explorers, predictions, search, theme. `made`, `player`, `film` and `explorer` come
// from JupyterLab's extension, and stand before this in the same script.
const page = document.documentElement, root = document.body.dataset.root;
const kept = { // nothing is kept where the browser allows none
  get(key) { try { return localStorage.getItem(`dpbook:${key}`); } catch { return null; } },
  set(key, value) { try { localStorage.setItem(`dpbook:${key}`, value); } catch { /* nothing is kept */ } },
  remove(key) { try { localStorage.removeItem(`dpbook:${key}`); } catch { /* nothing is kept */ } },
};
page.classList.add('js');

function script(src) {
  return new Promise((resolve, reject) => {
    document.head.append(made('script', {src, onload: resolve, onerror: () => reject(new Error(`${src} could not be loaded`))}));
  });
}

// Call `start` with each element when it comes near the window.
function whenNear(elements, start) {
  const observer = new IntersectionObserver(entries => {
    for (const {isIntersecting, target} of entries) {
      if (!isIntersecting) continue;
      observer.unobserve(target);
      start(target);
    }
  }, {rootMargin: '600px'});
  elements.forEach(element => observer.observe(element));
}

// Players.
whenNear(document.querySelectorAll('.player'), host => {
  const {step, pace, at} = host.dataset;
  const svg = host.querySelector('script').textContent.replaceAll('<\\/script', '</script');
  player.mount(host.querySelector('.live'), {svg, step, pace: Number(pace), at: Number(at)});
  host.classList.add('mounted');
});

// Explorers: a film is loaded when its figure comes near.
const arrivals = {};
window.dpbookFilm = (name, code) => arrivals[name](Uint8Array.from(atob(code), letter => letter.charCodeAt(0)));
const films = {};
function filmOf(name, src) {
  return films[name] ??= new Promise((resolve, reject) => {
    arrivals[name] = bytes => resolve(film.open(bytes));
    script(src).catch(reject);
  });
}
whenNear(document.querySelectorAll('.explorer[data-film]'), async host => {
  const {name, knobs} = JSON.parse(host.dataset.explorer);
  let positions;
  try {
    positions = await filmOf(name, host.dataset.film);
  } catch { return; } // the stored picture stays
  const ask = async ({chosen}) => film.show(positions, knobs, chosen);
  const chosen = Object.fromEntries(knobs.map(knob => [knob.name, knob.values[knob.at]]));
  const live = made('div', {className: 'live'});
  explorer.mount(live, {name, knobs, figure: (await ask({chosen})).figure}, {ask, keep() {}});
  const ranges = [...live.querySelectorAll('input[type=range]')];
  const rest = knobs.filter((knob, i) => (ranges[i].disabled = !positions.knobs.includes(knob.name)));
  if (rest.length) live.append(made('p', {className: 'note', textContent: 'The other knobs turn in the notebook.'}));
  host.prepend(live);
  host.classList.add('mounted');
});

// Predictions: the answer, the run and the lines that state the answer open after a guess.
// A guess of as many numbers as the answer has is compared one by one, each in the answer's unit or in none.
const UNIT = /^\s*(%|per ?cent|(?:[kmgt]i?)?b(?:ytes?|its?)?(?:\/s)?|[mµun]?s(?:ec\w*)?|milliseconds?|[kmx]|e\d+|times|thousand|million|billion|min\w*|hours?|days?)(?!\w)/i;
const ORDINALS = ['first', 'second', 'third', 'fourth', 'fifth', 'sixth'];

// How far a guessed number is from the right one, in words: '' where they are equal, null where they cannot be compared.
function distance(match, answer) {
  const [number, unit] = answer.replaceAll(',', '').replace('−', '-').split(' ');
  const guess = Number(match[0]), right = Number(number), rest = match.input.slice(match.index + match[0].length);
  const named = rest.match(UNIT)?.[1];
  if ((named && named !== unit) || /^[\d.^]/.test(rest)) return null;
  if (guess === right) return '';
  if (guess <= 0 || right <= 0) return null;
  const ratio = Math.max(guess, right) / Math.min(guess, right), side = guess > right ? 'large' : 'small';
  if (ratio < 1.995) return `${Math.max(1, Math.round(100 * Math.abs(guess / right - 1)))} % too ${side}`;
  return `${ratio < 9.95 ? ratio.toPrecision(2) : Math.round(ratio)} times too ${side}`;
}

function compared(guess, answers) {
  if (!answers.length) return '';
  const several = answers.length > 1;
  const said = several ? `The numbers of the answer are ${answers.join(', ')}` : `The answer is ${answers[0]}`;
  const plain = guess.replace(/(\d),(?=\d{3})/g, '$1').replaceAll('−', '-');
  const found = [...plain.matchAll(/(?<![\w.])-?\d*\.?\d+/g)];
  const off = found.length === answers.length ? answers.map((answer, i) => distance(found[i], answer)) : [null];
  if (off.includes(null)) return `${said}.`;
  if (!off.some(Boolean)) return several ? 'These are the numbers of the answer.' : 'That is the number of the answer.';
  const each = off.map((words, i) => words && `your ${several ? ORDINALS[i] : 'guess'} is ${words}`).filter(Boolean);
  return `${said}: ${each.join(', ')}.`;
}
for (const box of document.querySelectorAll('.prediction')) {
  const {key} = box.dataset, answers = box.dataset.answer.split('; ').filter(Boolean), form = made('form', {className: 'guess'});
  const input = made('input', {type: 'text', maxLength: 200, value: kept.get(key) ?? '', autocomplete: 'off'});
  const show = made('button', {textContent: 'Show the answer'});
  const skip = made('button', {type: 'button', className: 'plain', textContent: 'skip'});
  const message = made('p', {className: 'message'});
  input.setAttribute('aria-label', 'Your prediction');
  message.setAttribute('role', 'status');
  form.append(made('label', {}, 'Your prediction ', input), show, skip);
  box.querySelector('div.guess').replaceWith(form, message);
  const open = () => {
    box.classList.remove('locked');
    for (const details of box.querySelectorAll('.answer > details')) details.open = true;
    const guess = input.value.trim();
    message.replaceChildren(...(guess ? ['You predicted ', made('b', {textContent: guess}), '. ', compared(guess, answers)] : []));
    show.remove();
    skip.remove();
  };
  form.onsubmit = event => {
    event.preventDefault();
    const guess = input.value.trim();
    if (!guess) {
      message.textContent = 'Guess first, however roughly, or skip.';
      input.focus();
      return;
    }
    kept.set(key, guess);
    open();
  };
  skip.onclick = () => { kept.set(key, ' '); open(); };
  input.oninput = () => {
    if (box.classList.contains('locked')) return;
    kept.set(key, input.value.trim() || ' ');
    open();
  };
  box.classList.add('locked');
  if (kept.get(key) !== null) open();
}

// Code is copied as it is shown: without the lines that a question hides.
if (navigator.clipboard) for (const code of document.querySelectorAll('main .cell pre.code')) {
  const button = made('button', {type: 'button', className: 'copy', textContent: 'Copy'});
  button.onclick = async () => {
    await navigator.clipboard.writeText(code.innerText.replace(/\n*$/, '\n'));
    button.textContent = 'Copied';
    setTimeout(() => { button.textContent = 'Copy'; }, 2000);
  };
  code.before(button);
}

// What is wider than its place can be reached by Tab, to scroll it by the arrow keys. Its edge fades until its end is seen.
const fade = one => one.classList.toggle('more', one.scrollLeft + one.clientWidth < one.scrollWidth - 2);
document.addEventListener('scroll', ({target}) => target.matches?.('[tabindex]') && fade(target), {capture: true, passive: true});
const wide = new ResizeObserver(entries => {
  for (const {target} of entries) {
    const scroller = target.closest('pre, table, math[display=block], .figure, .picture');
    if (!scroller) continue; // another picture has taken its place
    if (scroller.scrollWidth > scroller.clientWidth) scroller.tabIndex = 0;
    else scroller.removeAttribute('tabindex');
    fade(scroller);
  }
});
const watchWidths = element => element.querySelectorAll('pre, table, math[display=block], .figure, .picture, :is(.figure, .picture) img').forEach(one => wide.observe(one));
new MutationObserver(changes => changes.forEach(({target}) => watchWidths(target))).observe(document.querySelector('main'), {childList: true, subtree: true});
watchWidths(document);

// The theme. Pictures follow the page's colour scheme.
const theme = document.querySelector('button.theme');
if (theme) {
  const label = () => { theme.textContent = `Theme: ${page.dataset.theme ?? 'auto'}`; };
  theme.onclick = () => {
    const themes = ['auto', 'light', 'dark'];
    page.dataset.theme = themes[(themes.indexOf(page.dataset.theme) + 1) % themes.length];
    kept.set('theme', page.dataset.theme);
    label();
  };
  label();
}

// Contents: a menu on narrow windows; the list of the page follows what is read.
const menu = document.querySelector('button.menu');
if (menu) menu.onclick = () => menu.setAttribute('aria-expanded', String(document.body.classList.toggle('open')));
const contents = document.querySelector('.contents'), current = contents?.querySelector('[aria-current]');
if (current) contents.scrollTop = current.offsetTop - contents.clientHeight / 3;
const links = new Map([...document.querySelectorAll('aside a')].map(link => [link.getAttribute('href').slice(1), link]));
if (links.size) {
  const headings = [...links.keys()].map(id => document.getElementById(id));
  const follow = () => {
    const passed = headings.filter(heading => heading.getBoundingClientRect().top < innerHeight / 3);
    const here = passed.at(-1) ?? headings[0];
    for (const [id, link] of links) link.toggleAttribute('aria-current', id === here.id);
  };
  addEventListener('scroll', () => requestAnimationFrame(follow), {passive: true});
  follow();
}

// Search: sections with the most words of the question, rare ones first. The index is loaded when it is first wanted.
const field = document.querySelector('input[type=search]'), results = document.querySelector('.results');
const SMALL = new Set('a an and are as be by can do does for from how i in is it its many much my of on one or so than that the their this to use what when where which who why with you your'.split(' '));
if (field) {
  let index = null;
  const joined = text => text.toLowerCase().replaceAll('-', '');
  const load = () => index ??= script(`${root}search.js`).then(() => window.dpbookSearch.map(
    ([place, title, anchor, heading, text]) => ({place, title, anchor, heading, text, in: [heading, title, text].map(joined)})));
  // A word is found at the beginning of words, in another form too ("scaling": scale, scaled), and "allreduce" in "all-reduce".
  const patternOf = word => {
    const stem = word.length > 4 ? word.replace(/(?:ies|ing|es|ed|s|e|y)$/, '') : word;
    return `(?<![\\p{L}\\d])${[...(stem.length > 2 ? stem : word)].map(letter => letter.replace(/[.*+?^${}()|[\]\\/]/, '\\$&')).join('-?')}`;
  };
  const patternsOf = text => {
    const words = joined(text).split(/[^\p{L}\d_./]+/u).filter(Boolean);
    const telling = words.filter(word => !SMALL.has(word));
    return (telling.length ? telling : words).map(word => new RegExp(patternOf(word), 'giu'));
  };
  const count = (text, pattern) => text.match(pattern)?.length ?? 0;
  const marked = (text, patterns) => {
    const any = new RegExp(`(${patterns.map(pattern => pattern.source).join('|')})`, 'giu');
    return text.split(any).map((part, i) => i % 2 ? made('mark', {textContent: part}) : part);
  };
  function ranked(sections, patterns) {
    const counts = sections.map(section => patterns.map(pattern => section.in.map(text => count(text, pattern))));
    const weights = patterns.map((_, i) => Math.log(1 + sections.length / (1 + counts.filter(one => one[i].some(Boolean)).length)));
    const points = counts.map((one, at) => { // a word weighs less in a long section (BM25)
      const {text, place} = sections[at], length = 0.5 + text.length / 1000;
      const parts = one.map(([heading, title, times], i) => weights[i] * (6 * (heading > 0) + 3 * (title > 0) + 8 * times / (times + length)));
      const share = parts.filter(Boolean).length / patterns.length;
      return parts.reduce((sum, part) => sum + part, 0) * share ** 2 * (/^(docs.teaching|library)./.test(place) ? 0.5 : 1);
    });
    return sections.map((section, i) => [points[i], section]).filter(([sum]) => sum).sort(([a], [b]) => b - a).slice(0, 12);
  }
  const result = ({place, title, anchor, heading, text}, patterns) => {
    const first = Math.max(0, Math.min(...patterns.map(pattern => text.search(pattern)).filter(at => at >= 0), text.length) - 50);
    const from = first && text.indexOf(' ', first) + 1, to = text.length > from + 150 ? text.lastIndexOf(' ', from + 150) : text.length;
    return made('a', {href: `${root}${place}#${anchor}`}, made('b', {}, ...marked(heading, patterns)),
      made('small', {}, `${title} · `, ...marked(`${from ? '… ' : ''}${text.slice(from, to)}${to < text.length ? ' …' : ''}`, patterns)));
  };
  field.onfocus = load;
  field.oninput = async () => {
    const asked = field.value, patterns = patternsOf(asked);
    const sections = patterns.length ? await load() : [];
    if (asked !== field.value) return; // a later question
    results.replaceChildren(...ranked(sections, patterns).map(([, section]) => result(section, patterns)));
    if (patterns.length && !results.firstChild) results.append(made('p', {textContent: 'Nothing found.'}));
    results.hidden = !patterns.length;
  };
  // Enter opens the first result; the arrow keys go through them.
  document.querySelector('search').onkeydown = event => {
    const stops = [field, ...results.querySelectorAll('a')], step = {ArrowDown: 1, ArrowUp: -1}[event.key];
    if (event.key === 'Enter' && event.target === field) stops[1]?.click();
    else if (step) {
      event.preventDefault();
      stops[stops.indexOf(event.target) + step]?.focus();
    }
  };
  addEventListener('keydown', event => {
    if (event.key === '/' && !event.target.closest('input, textarea')) {
      event.preventDefault();
      field.focus();
    } else if (event.key === 'Escape') results.hidden = true;
  });
  addEventListener('click', event => { if (!event.target.closest('search')) results.hidden = true; });
}
