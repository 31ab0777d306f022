// What NCCL takes on networks side by side: the price and its band, from a table at every number of GPUs and size.

/** Choices and sliders over {title, collectives: [{name, seconds: [network][gpus][size]}], networks: [{name, most, low, high}], gpus, bytes}. */
function prices(el, data, at = {}) {
  const root = frame(el), says = h("div", { "aria-live": "polite" }), sheet = h("div", { class: "sheet" })
  const here = { ...data.at, ...at.value }
  const controls = [
    ["collective", "collective", data.collectives.map(each => each.name), String],
    ["gpus", "GPUs", data.gpus, n => n.toLocaleString("en")], ["bytes", "buffer", data.bytes, inBytes],
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
    const { name, seconds } = data.collectives[here.collective], gpus = data.gpus[here.gpus]
    const rows = data.networks.map((network, k) => {
      const time = seconds[k][here.gpus][here.bytes], beyond = gpus > network.most
      return { name: network.name, time, low: time * network.low[here.bytes], high: time * network.high[here.bytes], beyond }
    })
    const best = rows.reduce((a, b) => (b.time < a.time ? b : a)), far = rows.filter(row => row.beyond)
    says.textContent = `${name} of ${inBytes(data.bytes[here.bytes])} on ${gpus.toLocaleString("en")} GPUs: ${best.name} takes ` +
      `${inTime(best.time)}, nine of ten systems ${inTime(best.low)} to ${inTime(best.high)}` +
      (far.length ? `. Extrapolated for ${far.map(row => row.name).join(", ")}: nobody has published so many GPUs` : "")
    const start = Math.log10(Math.min(...rows.map(row => row.low))) - 0.05
    const most = Math.max(0.7, Math.log10(Math.max(...rows.map(row => row.high))) - start), x = t => 2 + (200 * (Math.log10(t) - start)) / most
    const drawn = drawing(360, rows.length * 44 + 4, { "aria-label": rows.map(row => `${row.name}: ${inTime(row.time)}, ${inTime(row.low)} to ${inTime(row.high)}`).join("; "), tabindex: null })
    for (const [k, row] of rows.entries()) {
      const y = k * 44 + 20
      drawn.append(words(2, k * 44 + 10, row.beyond ? `${row.name}, extrapolated` : row.name),
        h("rect", { x: x(row.low), y, width: x(row.high) - x(row.low), height: 16, rx: 3, fill: "currentColor", "fill-opacity": 0.22 }),
        h("rect", { x: x(row.time) - 1.5, y: y - 2, width: 3, height: 20, fill: row.beyond ? "none" : "var(--mark)", stroke: "var(--mark)" }),
        words(x(row.high) + 8, y + 8, inTime(row.time), { "font-size": 12 }))
    }
    sheet.replaceChildren(drawn)
  }
  show()
}
