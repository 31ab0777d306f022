// On a page: every recording in it, played where it stands.

for (const [k, script] of document.querySelectorAll('script[type="application/vnd.collectives+json"]').entries()) {
  const data = JSON.parse(script.textContent), el = h("div")
  script.after(el)
  if (["predict", "puzzle"].includes(data.kind)) predict(el, data, remembered(`${location.pathname} ${k} ${data.title}`), markerOf(data))
  else if (data.kind === "runnable") runnable(el, data) // such a page brings it, and the next
  else if (data.kind === "explain") explain(el, data)
  else if (data.kind === "steps") steps(el, data)
  else ({ cost, prices, explore, planner, write })[data.kind](el, data, addressed(k, el))
  script.parentElement.querySelector(".room")?.remove()
  script.parentElement.classList.add("alive")
}

/** The settings of a page's k-th figure, whole numbers by name, which the page's address holds. */
function addressed(k, el) {
  const held = new URLSearchParams(location.hash.slice(1)), mine = held.get("figure") === String(k)
  if (mine) addEventListener("load", () => el.scrollIntoView({ block: "center" }))
  held.delete("figure")
  return {
    value: mine ? Object.fromEntries([...held].map(([name, place]) => [name, Math.max(0, parseInt(place) || 0)])) : undefined,
    set: here => history.replaceState(null, "", `#${new URLSearchParams({ figure: k, ...here })}`),
  }
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
