"""The style of the contact page: one sheet, light and dark, from a phone's width up. It names no other file."""

STYLE = """
:root {
  color-scheme: light dark;
  --ground: #f5f5f7; --card: #fff; --ink: #17181c; --soft: #5f6470; --line: #e3e4e9; --well: #f0f1f5;
  --accent: #4f46e5; --good: #15803d; --bad: #c02626; --warn-ground: #fff4dc; --warn: #7a4a00;
  --w0: #6366f1; --w1: #f08c2e; --w2: #12a594; --w3: #d6409f;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #0f1014; --card: #191b21; --ink: #ecedf1; --soft: #9da3b1; --line: #2b2e37; --well: #23262e;
    --accent: #a5a8ff; --good: #4ade80; --bad: #ff8080; --warn-ground: #33270f; --warn: #f5c772;
    --w0: #818cf8; --w1: #f5a352; --w2: #2dd4bf; --w3: #f472b6;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
  font-variant-numeric: tabular-nums;
}
main, header.page, footer { max-width: 1160px; margin: 0 auto; padding: 0 20px; }
header.page { padding-top: 40px; padding-bottom: 8px; }
h1 { margin: 0 0 12px; font-size: 28px; line-height: 1.2; letter-spacing: -0.02em; }
h2 { margin: 0; font-size: 18px; line-height: 1.3; overflow-wrap: anywhere; }
h3 { margin: 0 0 8px; font-size: 12px; font-weight: 600; color: var(--soft); }
.totals { display: flex; flex-wrap: wrap; gap: 4px 28px; margin: 0; padding: 0; list-style: none; color: var(--soft); }
.totals b { color: var(--ink); font-size: 20px; font-weight: 650; margin-right: 5px; }
.workers { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 14px 0 0; padding: 0; list-style: none; }
.workers li { font-size: 13px; }
.note {
  margin: 16px 0 0; padding: 10px 14px; border-radius: 10px; background: var(--warn-ground); color: var(--warn);
}
.card {
  margin: 20px 0; padding: 20px; border: 1px solid var(--line); border-radius: 16px; background: var(--card);
}
.chips { display: flex; flex-wrap: wrap; gap: 6px; margin: 8px 0 0; padding: 0; list-style: none; }
.chips li { padding: 2px 9px; border-radius: 99px; background: var(--well); color: var(--soft); font-size: 13px; }
.error { margin: 14px 0 0; color: var(--bad); overflow-wrap: anywhere; }
.halves { display: grid; gap: 20px; margin-top: 18px; }
.halves > * { min-width: 0; }
.stack { display: grid; gap: 18px; align-content: start; }
.picture { display: block; border-radius: 10px; overflow: hidden; background: #14161c; }
.picture img { display: block; width: 100%; height: auto; max-height: 380px; object-fit: contain; }
.wave { padding: 6px 0; border-radius: 10px; background: var(--well); }
.wave img { display: block; width: 100%; height: 96px; }
.only .wave img { height: 168px; }
video { display: block; width: 100%; aspect-ratio: 16 / 9; border-radius: 10px; background: #000; }
audio { display: block; width: 100%; }
.meter { display: block; width: 100%; height: 14px; }
.meter .rail { fill: var(--well); }
.meter .level { fill: var(--w0); }
.meter .peak { fill: var(--w1); }
.meter .mark { fill: var(--ink); opacity: 0.45; }
.figures { display: flex; flex-wrap: wrap; gap: 0 20px; margin: 0 0 8px; color: var(--soft); font-size: 13px; }
.figures b { color: var(--ink); font-size: 15px; font-weight: 650; }
table { width: 100%; border-collapse: collapse; font-size: 14px; }
th, td { padding: 5px 0 5px 12px; text-align: left; vertical-align: middle; white-space: nowrap; }
th:first-child, td:first-child { padding-left: 0; }
th { color: var(--soft); font-size: 12px; font-weight: 600; }
tbody tr { border-top: 1px solid var(--line); }
.number { text-align: right; }
.line { width: 40%; }
.line svg { display: block; width: 100%; height: 8px; }
.line .rail { fill: var(--well); }
.w0 { fill: var(--w0); } .w1 { fill: var(--w1); } .w2 { fill: var(--w2); } .w3 { fill: var(--w3); }
.dot { display: inline-block; width: 9px; height: 9px; margin-right: 6px; vertical-align: baseline; }
.state { display: inline-block; width: 1.4em; font-weight: 700; }
.done { color: var(--good); }
.failed { color: var(--bad); }
.open { color: var(--soft); }
.again { padding: 1px 7px; border-radius: 99px; background: var(--warn-ground); color: var(--warn); font-weight: 600; }
tbody .why { border-top: 0; }
.why td { padding: 0 0 6px 1.85em; color: var(--soft); font-size: 13px; line-height: 1.35; }
.why td:first-child { padding-left: 1.85em; white-space: normal; overflow-wrap: anywhere; }
a { color: var(--accent); }
a:focus-visible, video:focus-visible, audio:focus-visible { outline: 2px solid var(--accent); outline-offset: 3px; }
footer { padding-top: 8px; padding-bottom: 40px; color: var(--soft); font-size: 13px; }
@media (min-width: 880px) {
  .halves { grid-template-columns: minmax(0, 7fr) minmax(0, 6fr); }
  .halves.alone { grid-template-columns: minmax(0, 1fr); }
}
@media (max-width: 560px) {
  main, header.page, footer { padding-left: 12px; padding-right: 12px; }
  header.page { padding-top: 24px; }
  h1 { font-size: 24px; }
  .totals { gap: 2px 20px; }
  .totals b { font-size: 17px; }
  .card { padding: 14px; border-radius: 14px; }
  .line { display: none; }
  .wave img { height: 72px; }
}
@media print {
  .card { break-inside: avoid; }
}
""".strip()
