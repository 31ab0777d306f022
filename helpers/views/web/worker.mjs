// Python in a browser, beside the page. What a reader wrote is judged by the library itself, collectives/play/written.py.

import { loadPyodide } from "./pyodide.mjs"

const fetched = self.fetch
let loaded = 0

/** fetch, whose bytes are counted as they come. */
self.fetch = async (...what) => {
  const answer = await fetched(...what)
  if (!answer.ok) throw new Error(`${answer.url}: ${answer.status} ${answer.statusText}`)
  const counted = new TransformStream({ transform(part, way) {
    loaded += part.length
    postMessage({ loaded })
    way.enqueue(part)
  } })
  return new Response(answer.body.pipeThrough(counted), { headers: answer.headers })
}

const START = `
import json
from collectives.play.written import written
lambda source, task: json.dumps(written(source, json.loads(task)))
`

try {
  const library = fetch(new URL("collectives.zip", import.meta.url)).then(answer => answer.arrayBuffer())
  const python = await loadPyodide()
  python.unpackArchive(await library, "zip")
  const written = python.runPython(START)
  self.onmessage = ({ data }) => postMessage({ result: JSON.parse(written(data.source, JSON.stringify(data.task))) })
  postMessage({ ready: true })
} catch (error) {
  postMessage({ failure: String(error.message ?? error) })
}
