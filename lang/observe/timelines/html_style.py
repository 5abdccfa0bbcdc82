"""The style sheet and the script of the timeline page."""

STYLE = """
:root {
  color-scheme: light dark;
  --page: #f7f7f5; --card: #ffffff; --text: #1c1f23; --quiet: #626a73; --line: #e2e3e0; --grid: #eeeeeb;
  --cached: #0072b2; --cached-tint: #dcebf6; --cached-text: #27506d;
  --prefilled: #d98b00; --prefilled-tint: #fce9c0; --prefilled-text: #5c3d00;
  --sampled: #00855f; --sampled-tint: #d2f0e3; --sampled-text: #003f2d;
  --forced: #b0468f; --forced-tint: #f7dcee; --forced-text: #63204e;
  --tool: #6a5acd; --tool-tint: #e5e1fa; --tool-text: #372b86; --dead: #c2382b; --dead-tint: #fbe3e0;
  --queue: #b9bdc2; --shadow: 0 1px 2px rgb(0 0 0 / 5%), 0 4px 16px rgb(0 0 0 / 4%);
  --mono: ui-monospace, "SF Mono", "Cascadia Code", Menlo, Consolas, "DejaVu Sans Mono", monospace;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14161a; --card: #1c1f24; --text: #e6e8ea; --quiet: #98a1ab; --line: #30353c; --grid: #272b31;
    --cached: #4fa8e0; --cached-tint: #1c3346; --cached-text: #a5cdea;
    --prefilled: #f0ad35; --prefilled-tint: #43330f; --prefilled-text: #f8d796;
    --sampled: #35c495; --sampled-tint: #143c2f; --sampled-text: #b4f0da;
    --forced: #e283c2; --forced-tint: #432138; --forced-text: #f6c4e3;
    --tool: #a99cf5; --tool-tint: #2c2850; --tool-text: #d5cdff; --dead: #f0776b; --dead-tint: #45211d;
    --queue: #565d66; --shadow: none;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 40px clamp(14px, 3vw, 44px) 80px; max-width: 1480px;
  background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif;
}
header { display: flex; flex-wrap: wrap; align-items: baseline; gap: 4px 16px; margin-bottom: 20px; }
h1 { font-size: 26px; font-weight: 650; letter-spacing: -0.015em; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 13px; font-weight: 600; color: var(--quiet); margin: 0 0 14px; }
header p { margin: 0; color: var(--quiet); }
.card {
  background: var(--card); border: 1px solid var(--line); border-radius: 12px; box-shadow: var(--shadow);
  padding: 22px clamp(14px, 2vw, 26px); margin-bottom: 18px;
}
.claim { font-size: clamp(17px, 2.2vw, 21px); margin: 0 0 16px; letter-spacing: -0.01em; }
.claim b { font-weight: 700; font-variant-numeric: tabular-nums; }
.claim .share { color: var(--cached); }
.bar { display: flex; height: 14px; gap: 2px; border-radius: 7px; overflow: hidden; }
.bar i { min-width: 3px; background: var(--own); }
.legend { display: grid; grid-template-columns: repeat(auto-fit, minmax(190px, 1fr)); gap: 12px 24px; }
.legend { margin: 18px 0 0; }
.legend div { border-left: 4px solid var(--own); padding-left: 12px; }
.legend dt { display: flex; align-items: baseline; gap: 8px; font-size: 13px; color: var(--quiet); }
.legend dd { margin: 0; font-size: 22px; font-weight: 600; line-height: 1.25; font-variant-numeric: tabular-nums; }
.legend small { display: block; font-size: 12px; color: var(--quiet); font-weight: 400; }
.cached { --own: var(--cached); --tint: var(--cached-tint); --ink: var(--cached-text); }
.prefilled { --own: var(--prefilled); --tint: var(--prefilled-tint); --ink: var(--prefilled-text); }
.sampled { --own: var(--sampled); --tint: var(--sampled-tint); --ink: var(--sampled-text); }
.forced { --own: var(--forced); --tint: var(--forced-tint); --ink: var(--forced-text); }
.unused { --own: var(--queue); --tint: var(--grid); --ink: var(--quiet); }

.gantt { --label: clamp(74px, 14vw, 190px); position: relative; font-size: 13px; }
.lane { display: grid; grid-template-columns: var(--label) 1fr; align-items: center; height: 30px; }
.lane a.label {
  color: inherit; text-decoration: none; padding-left: calc(var(--depth) * 16px); white-space: nowrap;
  overflow: hidden; text-overflow: ellipsis; padding-right: 10px; font-variant-numeric: tabular-nums;
}
.lane a.label:hover { text-decoration: underline; }
.lane.child a.label::before {
  content: ""; display: inline-block; width: 7px; height: 9px; margin: 0 6px 4px -11px; vertical-align: middle;
  border: solid var(--quiet); border-width: 0 0 1.5px 1.5px; border-bottom-left-radius: 4px;
}
.track { position: relative; height: 100%; border-bottom: 1px solid var(--grid); }
.plot { position: absolute; inset: 0 0 0 var(--label); pointer-events: none; }
.plot i { position: absolute; top: 0; bottom: 22px; width: 1px; background: var(--grid); }
.plot span {
  position: absolute; bottom: 0; transform: translateX(-50%); color: var(--quiet); font-size: 12px;
  font-variant-numeric: tabular-nums; white-space: nowrap;
}
.plot span:first-of-type { transform: none; }
.run {
  position: absolute; top: 5px; bottom: 5px; min-width: 3px; display: flex; overflow: hidden; border-radius: 4px;
  color: var(--sampled-text); text-decoration: none; z-index: 1; transition: filter .12s;
}
.run:hover, .run:focus-visible { filter: brightness(0.93); outline: 2px solid var(--text); outline-offset: 1px; }
.run i { flex: none; height: 100%; }
.run .wait { background: repeating-linear-gradient(120deg, var(--queue) 0 2px, transparent 2px 5px); }
.run .fill, .run .name {
  padding: 0 7px; line-height: 20px; font-size: 12px; font-style: normal; font-weight: 550; white-space: nowrap;
  overflow: hidden; text-overflow: ellipsis;
}
.run .fill { background: var(--prefilled); color: #241800; }
.run .fill:empty { padding: 0; }
.run .name {
  flex: 1 1 0; min-width: 0;
  background: var(--sampled-tint); box-shadow: inset 0 0 0 1px var(--sampled);
}
.run.tight .name { padding: 0; background: var(--sampled); color: transparent; }
.run.tool .name { background: var(--tool-tint); color: var(--tool-text); box-shadow: inset 0 0 0 1px var(--tool); }
.run.tool.tight .name { background: var(--tool); color: transparent; }
.run.void { opacity: 0.4; }
.track > b.dead {
  position: absolute; top: 7px; margin-left: 4px; padding: 0 6px; border-radius: 4px; z-index: 2; white-space: nowrap;
  font-size: 11.5px; line-height: 16px; font-weight: 600; background: var(--dead-tint); color: var(--dead);
}
.axis { height: 26px; }
.key { display: flex; flex-wrap: wrap; gap: 6px 20px; margin: 12px 0 0; font-size: 12.5px; color: var(--quiet); }
.key span { display: inline-flex; align-items: center; gap: 7px; }
.key i { width: 18px; height: 11px; border-radius: 3px; }
.key .wait { background: repeating-linear-gradient(120deg, var(--queue) 0 2px, transparent 2px 5px); }
.key .fill { background: var(--prefilled); }
.key .name { background: var(--sampled-tint); box-shadow: inset 0 0 0 1px var(--sampled); }
.key .tool { background: var(--tool-tint); box-shadow: inset 0 0 0 1px var(--tool); }
.key .dead { background: var(--dead-tint); box-shadow: inset 0 0 0 1px var(--dead); }
.card.dead { border-color: var(--dead); }
.card.dead b, p.dead b { color: var(--dead); margin-right: 8px; }
.quiet { color: var(--quiet); font-size: 13.5px; margin: -6px 0 14px; }
.badge {
  font-style: normal; font-size: 12px; font-weight: 550; padding: 1px 8px; border-radius: 9px; white-space: nowrap;
  background: var(--grid); color: var(--quiet);
}
.badge.dead { background: var(--dead-tint); color: var(--dead); }

.loads { height: 146px; overflow: hidden; }
.loads .load { position: absolute; inset: 0 0 26px var(--label); width: calc(100% - var(--label)); height: 120px; }
.loads .peak { position: absolute; top: 0; left: 0; width: calc(var(--label) - 10px); text-align: right; }
.loads .peak { color: var(--quiet); font-variant-numeric: tabular-nums; }
header .badge { margin-left: 10px; }
.load .name { fill: var(--sampled); } .load .tool { fill: var(--tool); }
.load .fill { fill: var(--prefilled); } .load .wait { fill: var(--queue); opacity: 0.55; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(190px, 1fr)); gap: 12px 24px; margin: 18px 0 0; }
.facts dd { margin: 0; font-size: 20px; font-weight: 600; font-variant-numeric: tabular-nums; }
.facts dt { font-size: 12.5px; color: var(--quiet); }
.beginnings { list-style: none; margin: 0; padding: 0; display: grid; gap: 12px; }
.beginnings li { display: grid; grid-template-columns: 230px minmax(40px, 1fr) 190px; gap: 2px 16px; }
.beginnings li { align-items: center; font-size: 13.5px; }
.beginnings .who { font-weight: 600; }
.beginnings .much { height: 10px; border-radius: 5px; background: var(--grid); overflow: hidden; }
.beginnings .much i { display: block; height: 100%; min-width: 3px; border-radius: 5px; background: var(--cached); }
.beginnings .saves { text-align: right; color: var(--quiet); font-variant-numeric: tabular-nums; }
.beginnings + .quiet { margin: 12px 0 0; }
.beginnings code {
  grid-column: 1 / -1; font: 12.5px/1.5 var(--mono); color: var(--cached-text); background: var(--cached-tint);
  padding: 3px 8px; border-radius: 5px; white-space: nowrap; overflow: hidden; text-overflow: ellipsis;
}
.programs { --label: clamp(90px, 24vw, 320px); }
.programs summary { cursor: pointer; list-style: none; }
.programs summary::-webkit-details-marker { display: none; }
.programs summary:hover .track, .programs details[open] > summary .track { background: var(--grid); }
.programs summary .label { display: flex; gap: 8px; padding-right: 12px; overflow: hidden; white-space: nowrap; }
.programs summary .label { font-variant-numeric: tabular-nums; }
.programs summary .label small { color: var(--quiet); font-size: 12px; overflow: hidden; text-overflow: ellipsis; }
.programs summary .label small { line-height: 20px; }
.programs .track > i { position: absolute; top: 6px; bottom: 6px; min-width: 1px; z-index: 1; }
.programs .track > i.name { background: var(--sampled); }
.programs .track > i.tool { background: var(--tool); }
.programs .track > i.fill { background: var(--prefilled); }
.programs .track > i.wait { background: var(--queue); opacity: 0.6; top: 45%; bottom: 45%; }
.programs .dead > summary .label { color: var(--dead); }
.programs details[open] { border-bottom: 2px solid var(--line); padding-bottom: 10px; }
.programs .inside { position: relative; z-index: 2; background: var(--card); padding: 14px 0 6px; }
.dense details:not([open]) > summary.lane { height: 11px; }
.dense details:not([open]) > summary .track { border: 0; }
.dense details:not([open]) > summary .track > i { top: 1px; bottom: 1px; }
.dense details:not([open]) > summary .track > i.wait { top: 4px; bottom: 4px; }
.dense details:not([open]) > summary .label { font-size: 9.5px; line-height: 11px; color: var(--quiet); }
.dense details:not([open]) > summary .label small { font-size: 9.5px; line-height: 11px; }

.branch { scroll-margin-top: 12px; min-width: 0; }
.branch > h3 {
  display: flex; flex-wrap: wrap; align-items: baseline; gap: 4px 10px; margin: 0 0 8px;
  font-size: 14px; font-weight: 600;
}
.branch > h3 small { font-weight: 400; color: var(--quiet); font-variant-numeric: tabular-nums; }
.children {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 285px), 1fr)); gap: 18px;
  margin: 20px 0 20px 9px; padding: 0 0 0 18px; border-left: 2px solid var(--line);
}
.children > .branch { border-top: 2px solid var(--line); padding-top: 12px; }
.message { display: grid; grid-template-columns: 76px minmax(0, 1fr); gap: 0 12px; margin: 0 0 10px; }
.message > b { font-size: 12px; font-weight: 600; color: var(--quiet); padding-top: 4px; text-align: right; }
.message.plain { display: block; }
.body { min-width: 0; }
.flow { margin: 0; font: 13px/1.85 var(--mono); white-space: pre-wrap; overflow-wrap: anywhere; tab-size: 4; }
.flow.long:not(.open) { max-height: 11.1em; overflow: hidden; mask-image: linear-gradient(#000 70%, transparent); }
.more {
  font: inherit; font-size: 12.5px; color: var(--cached); background: none; border: 0; padding: 4px 0; cursor: pointer;
}
.more:hover { text-decoration: underline; }
.t {
  font-style: normal; background: var(--tint); color: var(--ink); padding: 2px 0; border-radius: 3px;
  box-shadow: inset -1px 0 0 var(--card); -webkit-box-decoration-break: clone; box-decoration-break: clone;
}
.t.sampled { border-bottom: 2px solid var(--own); }
.t.forced { border-bottom: 2px dashed var(--own); }
.t:hover { outline: 2px solid var(--own); }
.t u { text-decoration: none; opacity: 0.45; }
.piece { scroll-margin: 40vh; }
.piece.role { opacity: 0.72; }
.piece:target .t, .piece.lit .t { background: color-mix(in srgb, var(--own) 36%, var(--card)); }
.chip {
  font: 600 11.5px/1 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; white-space: nowrap;
  color: var(--card); background: var(--sampled); border-radius: 4px; padding: 3px 6px; margin: 0 5px 0 3px;
  vertical-align: 1px; user-select: none;
}
.tool .chip { background: var(--tool); }
.chip.skipped { background: none; color: var(--quiet); box-shadow: inset 0 0 0 1px var(--line); font-weight: 500; }
.again {
  display: block; margin: 8px 0; padding: 2px 10px; border-left: 3px solid var(--dead); color: var(--dead);
  font: 12.5px/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
}
.shares { margin: 14px 0 -10px 9px; padding-left: 18px; font-size: 13px; color: var(--cached); }
.chances { display: flex; flex-wrap: wrap; gap: 10px 28px; margin: 10px 0 4px; }
.chances figure { margin: 0; min-width: 0; max-width: 100%; }
.chances figcaption { font-size: 12.5px; font-weight: 600; color: var(--sampled); margin-bottom: 3px; }
.odds {
  display: grid; grid-template-columns: max-content minmax(30px, 130px) max-content; gap: 4px 12px;
  align-items: center; font-size: 13px;
}
.odds code { font-family: var(--mono); max-width: 26ch; }
.odds code { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.odds div { height: 8px; border-radius: 4px; background: var(--grid); }
.odds div i { display: block; height: 100%; border-radius: 4px; background: var(--queue); }
.odds .best i { background: var(--sampled); }
.odds span { color: var(--quiet); font-variant-numeric: tabular-nums; }
.odds p { grid-column: 1 / -1; margin: 0; color: var(--quiet); }
#tip {
  position: fixed; z-index: 9; max-width: min(340px, calc(100vw - 24px)); padding: 9px 12px; border-radius: 8px;
  background: var(--text); color: var(--card); font-size: 12.5px; line-height: 1.5; pointer-events: none;
  box-shadow: 0 6px 24px rgb(0 0 0 / 25%); overflow-wrap: anywhere;
}
#tip code { font: 600 13px var(--mono); white-space: pre-wrap; }
@media (max-width: 620px) {
  body { padding-top: 22px; }
  .message { display: block; }
  .message > b { display: block; text-align: left; }
  .children { margin-left: 0; padding-left: 12px; }
  .legend { grid-template-columns: 1fr 1fr; gap: 12px; }
  .legend small { display: none; }
  .beginnings li { grid-template-columns: 1fr max-content; }
  .beginnings .much { display: none; }
}
@media (prefers-reduced-motion: reduce) { * { transition: none !important; } }
@media print { .flow.long { max-height: none !important; mask-image: none; } .more { display: none; } }
"""

SCRIPT = """
const tip = document.getElementById("tip");
const origins = {
  cached: "from the cache", prefilled: "prefilled", sampled: "sampled by the model", forced: "forced by the grammar",
  unused: "never computed: nothing was generated after it",
};
function line(text, tag = "div") {
  const element = document.createElement(tag);
  element.textContent = text;
  return element;
}
function show(event) {
  const target = event.target.closest?.("[data-info], .t");
  tip.hidden = !target;
  document.querySelectorAll(".lit").forEach((piece) => piece.classList.remove("lit"));
  if (!target) return;
  tip.replaceChildren();
  const piece = target.closest("[data-info]");
  if (target.classList.contains("t")) {
    const index = [...piece.querySelectorAll(".t")].indexOf(target);
    const marks = target.querySelectorAll("u").length;
    tip.append(line(JSON.stringify(marks ? target.dataset.text : target.textContent), "code"));
    tip.append(line(origins[target.classList[1]] + " · position " + (Number(piece.dataset.at) + index)));
  } else {
    if (target.hash) document.querySelector(target.hash)?.classList.add("lit");
  }
  tip.append(line(piece.dataset.info));
  const box = tip.getBoundingClientRect();
  const left = Math.min(event.clientX + 14, innerWidth - box.width - 10);
  const below = event.clientY + 20 + box.height < innerHeight;
  tip.style.left = Math.max(10, left) + "px";
  tip.style.top = (below ? event.clientY + 20 : event.clientY - box.height - 12) + "px";
}
document.addEventListener("pointermove", show);
document.addEventListener("pointerdown", show);
document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
function open(flow) {
  flow.classList.add("open");
  flow.nextElementSibling?.remove();
}
document.addEventListener("click", (event) => {
  if (event.target.matches(".more")) open(event.target.previousElementSibling);
});
function reveal() {
  const target = location.hash && document.querySelector(location.hash);
  if (!target) return;
  const details = target.closest("details");
  if (details) details.open = true;
  const flow = target.closest(".flow.long:not(.open)");
  if (flow) open(flow);
}
addEventListener("hashchange", reveal);
reveal();
"""
