"""The style sheet and the script of the page of completions; it can be read without the script."""

STYLE = """
body { max-width: 60rem; }
details.update > summary { font-weight: 600; font-size: 1.02rem; color: var(--ink); margin: 1.4rem 0 .6rem; }
.group { border: 1px solid var(--line); border-radius: 10px; padding: 1rem 1.2rem .4rem; margin: 0 0 1.2rem; }
.group > .head { gap: .2rem .9rem; margin: 0 0 .7rem; font-size: .88rem; color: var(--soft); }
.group > .head b { color: var(--ink); }
.group > .head .mark { margin-left: auto; }
.mark { border: 1px solid #8c959f; border-radius: 1em; padding: 0 .6em; font-size: .78rem; font-weight: 600;
        color: #424a53; background: repeating-linear-gradient(135deg, #fff 0 5px, #eaeef2 5px 10px); }
.why { font-size: .9rem; color: #424a53; background: var(--tint); border-left: 3px solid #8c959f; margin: 0 0 .8rem;
       padding: .4rem .8rem; border-radius: 0 6px 6px 0; max-width: none; }
.message { margin: 0 0 .45rem; display: grid; grid-template-columns: 5.6rem minmax(0, 1fr); gap: .8rem;
           align-items: baseline; }
.role { font-size: .78rem; color: var(--soft); text-align: right; overflow-wrap: anywhere; }
.text { margin: 0; max-width: none; white-space: pre-wrap; overflow-wrap: anywhere; font-size: .95rem; }
.message .text { background: var(--tint); border-radius: 8px; padding: .35rem .75rem; }
.message details .text { margin-top: .3rem; }
.columns { margin: .1rem 0 .6rem 6.4rem; font-size: .84rem; color: var(--soft); max-width: none;
           overflow-wrap: anywhere; }
.columns code { color: var(--ink); }
ol.completions { list-style: none; margin: 0; padding: 0; }
.completion { border-top: 1px solid var(--line); padding: .75rem 0 .8rem; }
.completion > .head { margin: 0 0 .35rem; gap: .1rem .9rem; font-size: .88rem; }
.completion .strip { font-size: 1.02rem; }
.completion .strip > span { cursor: default; }
.completion .strip > span.raised { box-shadow: inset 0 -2px rgb(0 114 178 / calc(.15 + var(--c))); }
.completion .strip > span.lowered { box-shadow: inset 0 -2px rgb(213 94 0 / calc(.15 + var(--c))); }
.strip a { color: inherit; text-decoration: underline dotted 1.5px #57606a; text-underline-offset: .28em; }
.strip a:hover, .strip a[aria-expanded=true] { text-decoration: underline solid 2px #1b1f24; }
.strip > span.chosen { outline: 2px solid #1b1f24; outline-offset: 1px; }
.strip .end, .strip .part, .strip .break { font-style: normal; color: var(--soft); font-size: .72em; }
.strip .end::before { content: "end"; border: 1px solid #8c959f; border-radius: 4px; padding: 0 .3em; margin: 0 .25em; }
.strip .part::before { content: "\\25e6"; } .strip .break::before { content: "\\21b5"; }
.branches { margin-top: .3rem; }
ol.steps { list-style: none; margin: .3rem 0 0; padding: 0; }
ol.steps > li, .panel { border: 1px solid var(--line); border-radius: 8px; padding: .5rem .8rem .6rem;
                        margin: 0 0 .6rem; }
.panel { margin: .6rem 0 .3rem; border-color: #8c959f; box-shadow: 0 3px 12px rgb(27 31 36 / .1); }
.panel .close { float: right; }
.at { display: flex; flex-wrap: wrap; gap: .1rem .9rem; align-items: baseline; margin: 0 0 .35rem; max-width: none; }
.at code, .row code { white-space: pre-wrap; overflow-wrap: anywhere; }
.at code { font-weight: 700; }
ul.rows { list-style: none; margin: 0; padding: 0; font-size: .92rem; }
.row { display: grid; grid-template-columns: 3.6rem minmax(0, 1fr) 9.2rem; gap: 0 .8rem; align-items: start;
       padding: .28rem 0; border-top: 1px dashed var(--line); }
.row .reward { justify-self: start; margin-top: .12rem; }
.row > div { white-space: pre-wrap; overflow-wrap: anywhere; max-height: 9.5rem; overflow-y: auto; }
.row code { font: inherit; }
.taken { border: 1px solid #d0d7de; border-radius: 4px; padding: 0 .25rem; background: var(--tint); font-weight: 600; }
.row.sampled { background: linear-gradient(90deg, #eaeef2, #fff); border-top: 0; border-radius: 6px;
               padding-left: .5rem; margin-left: -.5rem; }
.before { color: #8c959f; } .kind { color: var(--soft); font-size: .78rem; }
.meter { position: relative; display: inline-block; width: 4rem; height: .5rem; border-radius: 3px;
         background: linear-gradient(90deg, #eaeef2 49%, #8c959f 49% 51%, #eaeef2 51%); }
.meter i { position: absolute; top: 0; height: 100%; border-radius: 2px; }
.meter .raised { left: 50%; background: #0072B2; } .meter .lowered { right: 50%; background: #D55E00; }
.row .number { display: flex; align-items: center; justify-content: flex-end; font-size: .8rem; line-height: 1.5rem; }
.row .meter { margin-right: auto; }
.tools { display: flex; flex-wrap: wrap; gap: .5rem 1.1rem; align-items: center; font-size: .88rem; color: var(--soft);
         margin: 0 0 1.1rem; padding: .55rem .8rem; background: #fff; border: 1px solid var(--line);
         border-radius: 8px; position: sticky; top: 0; z-index: 3; }
.tools[hidden], .tools label[hidden], .group[hidden] { display: none; }
.tools label { display: flex; align-items: center; gap: .45rem; }
.tools select, .close { font: inherit; color: var(--ink); border: 1px solid var(--line); border-radius: 6px;
                        padding: .15rem .4rem; background: #fff; max-width: 15rem; }
.close { cursor: pointer; font-size: .8rem; color: var(--soft); }
.tools output { margin-left: auto; }
.hover { position: fixed; z-index: 4; pointer-events: none; padding: .35rem .65rem; border-radius: 6px;
         background: #1b1f24; color: #fff; font-size: .8rem; line-height: 1.5; white-space: pre-line;
         font-variant-numeric: tabular-nums; max-width: 16rem; }
.hover[hidden] { display: none; }
@media (max-width: 45rem) {
  .group { padding: .8rem .8rem .2rem; }
  .message { grid-template-columns: 1fr; gap: .1rem; } .role { text-align: left; } .columns { margin-left: 0; }
  .row { grid-template-columns: 3.2rem minmax(0, 1fr); } .row .number { grid-column: 2; }
  .tools { position: static; } .tools output { margin-left: 0; }
}
@media print { .tools { display: none; } .group { break-inside: avoid; } }
"""

SCRIPT = """
{
  const all = name => [...document.querySelectorAll(name)];
  const groups = all(".group"), list = document.querySelector(".groups");
  const tools = document.querySelector(".tools"), [update, order, filter] = tools.querySelectorAll("select");
  const keys = {
    update: [one => one.dataset.update, -1], low: [one => one.dataset.reward, 1], high: [one => one.dataset.reward, -1],
    credit: [one => one.dataset.credit, -1], length: [one => one.dataset.length, -1],
  };
  // Those without a number, such as a reward that was skipped, come last.
  const sorted = (some, [key, sign]) => some.map((one, place) => [one, place, parseFloat(key(one))]).sort((a, b) =>
    isNaN(a[2]) - isNaN(b[2]) || sign * (a[2] - b[2]) || a[1] - b[1]).map(one => one[0]);
  const places = new Map(groups.map(group => [group, [...group.querySelectorAll(".completion")]]));
  const arrange = () => {
    const key = keys[order.value];
    for (const group of sorted(groups, key)) {
      const { teaches, equal } = group.dataset;
      const kept = { all: true, teach: teaches === "1", equal: equal === "1" }[filter.value];
      group.hidden = !(kept && (update.value === "" || group.dataset.update === update.value));
      list.append(group);
      const parts = places.get(group);
      group.querySelector(".completions").append(...(order.value === "update" ? parts : sorted(parts, key)));
    }
    const shown = groups.filter(group => !group.hidden).length;
    tools.querySelector("output").textContent = shown + (shown === 1 ? " prompt" : " prompts");
  };
  all("details.update").forEach(one => one.remove());
  [update, order, filter].forEach(one => one.addEventListener("change", arrange));
  tools.hidden = false;
  arrange();

  const close = completion => {
    for (const one of completion.querySelectorAll(".panel")) one.remove();
    for (const one of completion.querySelectorAll(".strip a[aria-expanded=true]")) {
      one.setAttribute("aria-expanded", "false");
      one.parentElement.classList.remove("chosen");
    }
  };
  for (const link of all(".strip a")) {
    link.setAttribute("aria-expanded", "false");
    link.addEventListener("click", event => {
      event.preventDefault();
      const completion = link.closest(".completion"), isOpen = link.getAttribute("aria-expanded") === "true";
      close(completion);
      if (isOpen) return;
      link.setAttribute("aria-expanded", "true");
      link.parentElement.classList.add("chosen");
      const panel = document.createElement("div"), button = document.createElement("button");
      panel.className = "panel";
      button.className = "close";
      button.type = "button";
      button.textContent = "Close";
      button.addEventListener("click", () => { close(completion); link.focus(); });
      const step = document.getElementById(link.getAttribute("href").slice(1));
      panel.append(button, ...[...step.childNodes].map(node => node.cloneNode(true)));
      completion.querySelector(".strip").after(panel);
    });
  }

  const tip = document.createElement("div");
  tip.className = "hover";
  tip.hidden = true;
  document.body.append(tip);
  for (const token of all(".completion .strip > span[title]")) {
    const text = token.title.split(", ").join("\\n");
    token.removeAttribute("title");
    token.setAttribute("aria-description", text);
    token.addEventListener("pointerenter", () => {
      tip.textContent = text;
      tip.hidden = false;
      const box = token.getClientRects()[0], room = innerWidth - tip.offsetWidth - 8;
      tip.style.left = Math.max(8, Math.min(room, box.left)) + "px";
      tip.style.top = (box.top > tip.offsetHeight + 12 ? box.top - tip.offsetHeight - 6 : box.bottom + 6) + "px";
    });
    token.addEventListener("pointerleave", () => { tip.hidden = true; });
  }
}
"""
