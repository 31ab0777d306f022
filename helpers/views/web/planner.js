// planner() on a page: Python comes when it is seen, or moved on a phone, and plans there.

function planner(el, data, address) {
  let was = Object.fromEntries(data.controls.map(control => [control.name, control.at]))
  const now = { ...data.now, words: `${data.now.words}. A move needs Python, ${Math.round(data.weighs / 1e6)} MB.` }
  prefetch(el, () => python.begin(() => {}))
  panel(el, { ...data, now }, { address }, async (at, say) => {
    const answer = await python.ask({ planned: [data.asked, was, at] }, loaded => say(loading(loaded, data.weighs)))
    if (answer.possible) was = at
    return answer
  })
}
