// The theme that the reader has chosen, before the page is first drawn.
try { document.documentElement.dataset.theme = localStorage['dpbook:theme'] || 'auto'; } catch { /* nothing is kept */ }
