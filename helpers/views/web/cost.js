// What algorithms cost, α-β: latency x steps + bytes / bandwidth. How many of each there are was counted from the
// algorithms themselves, at every number of ranks that the slider has.

const SIZES = Array.from({ length: 32 }, (_, k) => 2 ** (k + 3)) // 8 B to 16 GiB

/** Sliders over {algorithms: [{name, steps, share}], ranks, latency, bandwidth}; shares are of the buffer's bytes. */
function cost(el, data, at = {}) {
  const root = frame(el), says = h("div", { "aria-live": "polite" }), sheet = h("div", { class: "sheet" })
  const here = { ...data.at, ...at.value }
  const controls = [
    ["ranks", "ranks", data.ranks, n => n.toLocaleString("en")], ["bytes", "buffer", SIZES, inBytes],
    ["latency", "latency", data.latency, inTime], ["bandwidth", "bandwidth", data.bandwidth, b => `${b / 1e9} GB/s`],
  ]
  const lines = controls.map(([name, label, values, said]) => {
    const value = h("output", {}, said(values[here[name]]))
    const { input } = slider(label, values.length - 1, here[name], i => {
      here[name] = i
      value.textContent = said(values[i])
      at.set?.({ ...here })
      show()
    }, i => said(values[i]))
    return h("label", { class: "slide" }, h("span", {}, label), input, value)
  })
  root.append(h("b", {}, data.title), h("div", { class: "sliders" }, ...lines), says, sheet)

  function show() {
    const [n, bytes, alpha, bandwidth] = controls.map(([name, , values]) => values[here[name]])
    const rows = data.algorithms.map((algorithm, i) => {
      const latency = algorithm.steps[here.ranks] * alpha, transfer = (algorithm.share[here.ranks] * bytes) / bandwidth
      return { name: algorithm.name, i, time: latency + transfer, waits: latency / (latency + transfer) }
    }).sort((a, b) => a.time - b.time)
    const [best] = rows
    says.textContent = `${n.toLocaleString("en")} ranks, ${inBytes(bytes)}: ${best.name} is fastest with ${inTime(best.time)}, ` +
      `${Math.round(100 * best.waits)} % of it latency`
    const low = Math.log10(best.time) - 0.4, most = Math.max(1, Math.log10(rows.at(-1).time) - low)
    const drawn = drawing(360, rows.length * 44 + 4, { "aria-label": rows.map(row => `${row.name}: ${inTime(row.time)}`).join("; "), tabindex: null })
    for (const [k, row] of rows.entries()) {
      const long = (180 * (Math.log10(row.time) - low)) / most
      drawn.append(words(2, k * 44 + 10, row.name), h("rect", { x: 2, y: k * 44 + 20, width: long, height: 16, rx: 3,
        fill: k ? "currentColor" : "var(--mark)", "fill-opacity": k ? 0.35 : 1 }),
        words(long + 9, k * 44 + 28, `${inTime(row.time)}, ${Math.round(100 * row.waits)} % latency`, { "font-size": 12 }))
    }
    sheet.replaceChildren(drawn)
  }
  show()
}
