// In JupyterLab: an anywidget, whose kernel may be asked.

const LOST = "The kernel was restarted since: run this cell again, and it answers."

/** Asks the kernel, one question at a time: promises its answer. */
function asking(model) {
  let waiting = null
  const settle = (how, value) => {
    waiting?.[how](value)
    waiting = null
  }
  model.on("msg:custom", answer => settle("resolve", answer))
  model.on("comm_live_update", () => settle("reject", new Error(LOST)))
  return question => new Promise((resolve, reject) => {
    waiting = { resolve, reject }
    try {
      // A model that was saved with the notebook, as its layout was, has no connection, and sends to nobody.
      if (model.get("layout")?.comm_live === false) throw new Error(LOST)
      model.send(question)
    } catch { // a restart closed the connection
      settle("reject", new Error(LOST))
    }
  })
}

/** What a figure keeps where it is: in the front end's model, of which the kernel hears nothing. */
const keeping = model => ({ value: model.get("kept") ?? undefined, set: value => model.set("kept", value) })

const JUST_NOW = 20 // seconds: a figure made so lately appears because its cell was run
const drawn = new WeakSet() // models whose figure has been there

/** Puts the focus into a figure's first field, unless somebody types elsewhere or it was there before. */
function takeFocus(model, el) {
  const born = model.get("born"), busy = document.activeElement?.matches("input, textarea, select, [contenteditable=true]")
  if (!drawn.has(model) && born && Date.now() / 1000 - born < JUST_NOW && !busy) el.querySelector("[data-first]")?.focus()
  drawn.add(model)
}

/** The anywidget of a figure. */
const widget = figure => ({
  render({ model, el }) {
    figure(el, model.get("data"), keeping(model), asking(model))
    requestAnimationFrame(() => takeFocus(model, el)) // by then it is in the page
  },
})
