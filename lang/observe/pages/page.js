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
