// A prebuilt extension of JupyterLab, written by hand: progress.md is read again whenever its tab is looked at.
// JupyterLab reads a file once, when its tab is opened, and this one is in the workspace from the start.
const PAGE = 'progress.md'

const plugin = {
  id: 'collectives:progress',
  autoStart: true,
  activate: app => {
    const look = () => {
      const context = app.shell.currentWidget?.context
      if (context?.path === PAGE && context.isReady && !context.model.dirty) context.revert()
    }
    app.restored.then(() => {
      app.shell.currentChanged.connect(look)
      window.addEventListener('focus', look)
    })
  }
}

window._JUPYTERLAB = window._JUPYTERLAB || {}
window._JUPYTERLAB.collectives = { init: () => {}, get: async () => () => ({ __esModule: true, default: plugin }) }
