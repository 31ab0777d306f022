// A pipeline schedule in time: a lane a rank, a box an action, the microbatch's number in it.

const DOES = { F: ["forward", "#8cb43c"], B: ["backward", "#146464"], I: ["backward, input half", "#786428"], W: ["weights' half", "#1414a0"] }

/** Shows {title, lanes: [[stage, kind, microbatch, start, end]], keeps, starved} in `el`. */
function orders(el, data) {
  const root = frame(el), boxes = data.lanes.flat(), until = Math.max(1, ...boxes.map(box => box[4]))
  const wide = Math.max(560, Math.min(1600, 20 * until)), left = 62, high = 26, pitch = high + 10, right = 80
  const x = time => left + ((wide - left - right) * time) / until, y = rank => 8 + pitch * rank
  const drawn = drawing(wide, y(data.lanes.length) + 4, { "aria-label": `${data.title}. ${data.lanes.map((lane, rank) =>
    `rank ${rank}: ${lane.map(([, kind, microbatch]) => kind + microbatch).join(" ")}`).join("; ")}` })
  for (const [rank, lane] of data.lanes.entries()) {
    const first = Math.min(...lane.map(box => box[0]))
    drawn.append(words(left - 10, y(rank) + high / 2, `rank ${rank}`, { "text-anchor": "end" }),
      h("line", { x1: x(0), x2: x(until), y1: y(rank) + high / 2, y2: y(rank) + high / 2, stroke: "currentColor", "stroke-dasharray": "2 4", "stroke-opacity": .6 }))
    for (const [stage, kind, microbatch, start, end] of lane) {
      const fill = DOES[kind][1]
      drawn.append(h("rect", { x: x(start) + 0.5, y: y(rank), width: x(end) - x(start) - 1, height: high, rx: 3, fill, stroke: edge(fill), "fill-opacity": stage > first ? .6 : 1 }),
        words((x(start) + x(end)) / 2, y(rank) + high / 2, String(microbatch), { "text-anchor": "middle", "font-size": 12, fill: inkOn(fill) }))
    }
    drawn.append(words(x(until) + 8, y(rank) + high / 2, `keeps ${data.keeps[rank]}`, { "font-size": 12 }))
  }
  const kinds = Object.entries(DOES).filter(([kind]) => boxes.some(box => box[1] === kind))
  const legend = kinds.map(([, [said, fill]]) => h("span", {}, h("span", { class: "cell", style: `background: ${fill}; border-color: ${edge(fill)}; margin-right: 6px` }), said))
  root.append(h("b", {}, data.title), h("div", { class: "bar" }, ...legend, "dotted: the rank waits; number: microbatch"),
    h("div", { class: "sheet" }, drawn), ...data.starved.map(said => h("div", { class: "no" }, said)))
}
