// On a page: every recording in it, played where it stands.

for (const [k, script] of document.querySelectorAll('script[type="application/vnd.collectives+json"]').entries()) {
  const data = JSON.parse(script.textContent), el = h("div")
  script.after(el)
  if (["predict", "puzzle"].includes(data.kind)) predict(el, data, remembered(`${location.pathname} ${k} ${data.title}`), markerOf(data))
  else if (data.kind === "runnable") runnable(el, data) // such a page brings it, and the next
  else if (data.kind === "explain") explain(el, data)
  else ({ steps, cost, prices, explore, planner, write })[data.kind](el, data)
  script.parentElement.classList.add("alive")
}

/** What a reader wrote, from one visit to the next, unless the browser refuses. */
function remembered(name) {
  const key = `collectives ${name}`
  const allowed = does => { try { return does() } catch { return undefined } }
  return {
    value: allowed(() => JSON.parse(localStorage.getItem(key)) ?? undefined),
    set: value => allowed(() => (value === undefined ? localStorage.removeItem(key) : localStorage.setItem(key, JSON.stringify(value)))),
  }
}
