// On a page: every recording in it, played where it stands.

for (const script of document.querySelectorAll('script[type="application/vnd.collectives+json"]')) {
  const data = JSON.parse(script.textContent), el = h("div")
  script.after(el)
  if (["predict", "puzzle"].includes(data.kind)) predict(el, data, {}, markerOf(data))
  else ({ steps, cost, prices, explore, planner, write })[data.kind](el, data)
  script.parentElement.classList.add("alive")
}
