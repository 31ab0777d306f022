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

/** The anywidget of a figure. */
const widget = figure => ({
  render({ model, el }) {
    figure(el, model.get("data"), keeping(model), asking(model))
  },
})
