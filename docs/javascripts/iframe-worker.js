/* Lets the search work in pages that are opened as files. Browsers start no worker there, so the worker's script runs in a
   hidden frame. The theme asks for this by the name IFrameWorker. */
if (location.protocol === "file:") {
  class IFrameWorker extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      const inside = frame.contentWindow
      this.loaded = new Promise((done) => {
        inside.postMessage = (data) => this.answer(data)
        const script = frame.contentDocument.createElement("script")
        script.src = url
        script.onload = () => done(inside)
        frame.contentDocument.body.appendChild(script)
      })
    }

    answer(data) {
      const event = new MessageEvent("message", { data })
      this.dispatchEvent(event)
      if (this.onmessage) this.onmessage(event)
    }

    postMessage(data) {
      this.loaded.then((inside) => inside.dispatchEvent(new inside.MessageEvent("message", { data })))
    }

    terminate() {}
  }
  window.IFrameWorker = IFrameWorker
  window.Worker = IFrameWorker
}
