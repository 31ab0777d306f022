// A prebuilt extension of JupyterLab, written by hand: progress.md is read again when its tab is looked at, and while it is
// looked at whenever its file has changed. JupyterLab reads a file once, when its tab is opened.
const PAGE = 'progress.md'

const plugin = {
  id: 'collectives:progress',
  autoStart: true,
  activate: app => {
    const shown = () => {
      const context = app.shell.currentWidget?.context
      return context?.path === PAGE && context.isReady && !context.model.dirty ? context : null
    }
    const look = () => shown()?.revert()
    const watch = async () => {
      if (!shown() || document.hidden) return
      const file = await app.serviceManager.contents.get(PAGE, { content: false })
      if (file.last_modified !== shown()?.contentsModel?.last_modified) look()
    }
    app.restored.then(() => {
      app.shell.currentChanged.connect(look)
      window.addEventListener('focus', look)
      setInterval(() => watch().catch(() => {}), 2000) // a server that is gone says so itself
    })
  }
}

window._JUPYTERLAB = window._JUPYTERLAB || {}
window._JUPYTERLAB.collectives = { init: () => {}, get: async () => () => ({ __esModule: true, default: plugin }) }
