"""The script of figures: values under the pointer or the arrow keys, and figures in full width.

Pages can be read without it. Their Content-Security-Policy allows their scripts, by their hashes, and no other.
"""

import base64
import hashlib

# A figure has its curves as JSON in data-plot: box (left, top, width and height as shares of the drawing), x (the ends
# of the axis), log, unit, and series of label, colour, x, mean, low and high.
SCRIPT = """
for (const figure of document.querySelectorAll("figure.plot")) {
  const plot = JSON.parse(figure.dataset.plot), area = figure.querySelector(".area");
  const [left, top, width, height] = plot.box;
  const make = (tag, name, parent) => {
    const made = document.createElement(tag);
    made.className = name;
    parent.append(made);
    return made;
  };
  const cursor = make("i", "cursor", area), tip = make("output", "tip", area);
  const short = value => value === 0 ? "0" : Number(value.toPrecision(4)).toLocaleString("en");
  const share = x => plot.log ? Math.log(x / plot.x[0]) / Math.log(plot.x[1] / plot.x[0])
                              : (x - plot.x[0]) / (plot.x[1] - plot.x[0]);
  const places = [...new Set(plot.series.flatMap(one => one.x))].sort((a, b) => a - b);
  let chosen = -1;
  const hide = () => { cursor.hidden = tip.hidden = true; };
  const show = index => {
    chosen = index;
    const x = places[index], at = left + width * share(x);
    tip.replaceChildren();
    make("b", "", tip).textContent = short(x) + " " + plot.unit;
    for (const one of plot.series) {
      let near = 0;
      one.x.forEach((other, i) => { if (Math.abs(other - x) < Math.abs(one.x[near] - x)) near = i; });
      if (Math.abs(one.x[near] - x) > (plot.x[1] - plot.x[0]) / 40) continue;
      const line = make("span", "", tip), range = one.low[near] === one.high[near] ? "" :
        " (" + short(one.low[near]) + " to " + short(one.high[near]) + ")";
      make("i", "", line).style.background = one.colour;
      line.append(one.label + ": " + short(one.mean[near]) + range);
    }
    cursor.style.cssText = `left:${100 * at}%;top:${100 * top}%;height:${100 * height}%`;
    tip.style.cssText = at < .5 ? `left:calc(${100 * at}% + 8px)` : `right:calc(${100 * (1 - at)}% + 8px)`;
    cursor.hidden = tip.hidden = false;
  };
  hide();
  tip.setAttribute("aria-live", "polite");
  area.tabIndex = 0;
  area.addEventListener("pointermove", event => {
    const frame = area.getBoundingClientRect(), x = ((event.clientX - frame.left) / frame.width - left) / width;
    if (x < -.02 || x > 1.02) return hide();
    let near = 0;
    places.forEach((place, i) => { if (Math.abs(share(place) - x) < Math.abs(share(places[near]) - x)) near = i; });
    show(near);
  });
  area.addEventListener("pointerleave", hide);
  area.addEventListener("blur", hide);
  area.addEventListener("keydown", event => {
    const step = {ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10, Home: -1e9, End: 1e9}[event.key];
    if (event.key === "Escape") hide();
    if (step === undefined) return;
    event.preventDefault();
    show(Math.max(0, Math.min(places.length - 1, chosen + step)));
  });
  const button = make("button", "zoom", figure.querySelector("figcaption"));
  button.type = "button";
  button.textContent = "Enlarge";
  button.addEventListener("click", () => {
    button.textContent = figure.classList.toggle("large") ? "Reduce" : "Enlarge";
  });
}
"""


def digest(script: str) -> str:
    """By what a Content-Security-Policy allows a script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
