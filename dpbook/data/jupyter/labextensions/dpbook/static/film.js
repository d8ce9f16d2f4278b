// The film of an explorer (dpbook/app/site/films.py): its pictures at all positions of some knobs, without a kernel.

// Unpack a film from the bytes of its file.
export async function open(bytes) {
  const film = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'))).json();
  let before = [];
  film.frames = film.frames.map(frame => {
    if (typeof frame === 'string') return frame;
    if (frame[0] === -1) { // places, and the elements there that differ from the frame before
      const whole = before.slice();
      for (let i = 1; i < frame.length; i += 2) whole[frame[i]] = frame[i + 1];
      frame = whole;
    }
    return (before = frame);
  });
  return film;
}

const base64 = text => btoa(Array.from(new TextEncoder().encode(text), byte => String.fromCharCode(byte)).join(''));
const escaped = text => text.replaceAll('&', '&amp;').replaceAll('"', '&quot;').replaceAll('<', '&lt;');

// What a film shows for choices of all knobs: {figure} or {error}, or null where it has no such position.
export function show(film, knobs, chosen) {
  if (Object.entries(film.fixed).some(([name, value]) => chosen[name] !== value)) return null;
  let place = 0;
  for (const name of film.knobs) {
    const {values} = knobs.find(knob => knob.name === name);
    place = place * values.length + values.indexOf(chosen[name]);
  }
  const frame = film.frames[place];
  if (typeof frame === 'string') return {error: frame};
  const svg = frame.map(number => film.elements[number]).join('');
  const drawn = new DOMParser().parseFromString(svg, 'image/svg+xml').documentElement;
  const alt = [...drawn.children].filter(child => ['title', 'desc'].includes(child.tagName)).map(child => child.textContent).join(' ');
  return {figure: `<img alt="${escaped(alt)}" width="${drawn.getAttribute('viewBox').split(' ')[2]}" src="data:image/svg+xml;base64,${base64(svg)}">`};
}
