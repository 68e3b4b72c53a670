/* Search in pages opened from a disk: browsers start no workers there, so the script of the worker runs in a hidden frame. */
;(function () {
  if (location.protocol !== "file:") return

  class FrameWorker extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      this.frame = frame
      this.pending = []
      const inner = frame.contentWindow
      inner.document.open()
      inner.document.write("<!doctype html><html><body></body></html>")
      inner.document.close()
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      const load = (source) =>
        new Promise((resolve, reject) => {
          const script = inner.document.createElement("script")
          script.src = new URL(source, document.baseURI).href
          script.onload = resolve
          script.onerror = reject
          inner.document.body.appendChild(script)
        })
      inner.importScripts = (...sources) => Promise.all(sources.map(load))
      load(url).then(() => {
        this.ready = true
        this.pending.splice(0).forEach((data) => this.postMessage(data))
      })
      this.addEventListener("message", (event) => this.onmessage && this.onmessage(event))
    }

    postMessage(data) {
      if (!this.ready) this.pending.push(data)
      else this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }))
    }

    terminate() {
      this.frame.remove()
    }
  }

  window.Worker = FrameWorker
})()
